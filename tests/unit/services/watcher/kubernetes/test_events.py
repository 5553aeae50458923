"""Findings as Events."""

import re

import pytest

from services.watcher.kubernetes.events import EVENTS, MAX_NOTE, event_name, event_of
from services.watcher.kubernetes.reports import Finding
from tests.unit.services.watcher.kubernetes.readings import config_map, objective

NOW = "2026-11-21T12:00:00.000000Z"
FINDING = Finding("ResourceRefused", "spec.priority: 'high' isn't a number")


def test_an_event_regards_the_resource_and_names_who_says_it() -> None:
    made = event_of(objective(), FINDING, "watcher-1", NOW)
    assert made["regarding"] == {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
        "kind": "InferenceObjective",
        "namespace": "default",
        "name": "premium",
        "uid": "uid of premium",
    }
    assert made["metadata"]["namespace"] == "default"
    assert (made["type"], made["reason"], made["note"]) == ("Warning", "ResourceRefused", FINDING.text)
    assert (made["reportingInstance"], made["eventTime"]) == ("watcher-1", NOW)
    assert made["apiVersion"] == EVENTS.kind.api_version


def test_the_same_finding_is_the_same_event_whatever_it_is_seen_by() -> None:
    first = event_name(objective(), Finding("PodClaimedTwice", "text", "(1 of them)"))
    assert first == event_name(objective(priority=2), Finding("PodClaimedTwice", "text", "(2 of them)"))


@pytest.mark.parametrize(
    ("item", "finding"),
    [
        (objective(generation=2), FINDING),
        (objective(uid="another"), FINDING),
        (objective("second", uid="uid of premium"), FINDING),
        (objective(), Finding("ResourceRefused", "another text")),
        (objective(), Finding("NoEndpoints", FINDING.text)),
    ],
    ids=["generation", "object", "name", "text", "reason"],
)
def test_another_finding_is_another_event(item: dict[str, object], finding: Finding) -> None:
    assert event_name(item, finding) != event_name(objective(), FINDING)


@pytest.mark.parametrize("name", ["premium", "a.b-c", "x" * 253, "x" * 199 + "-" + "y" * 20, "x" * 199 + "." + "y"])
def test_every_name_is_one_that_the_api_takes(name: str) -> None:
    made = event_name(objective(name), FINDING)
    assert len(made) <= 253
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", made)


@pytest.mark.parametrize("text", ["x" * 5000, "é" * 5000])
def test_a_long_note_is_cut_between_characters(text: str) -> None:
    note = event_of(objective(), Finding("ResourceRefused", text), "watcher-1", NOW)["note"]
    assert MAX_NOTE - 3 <= len(note.encode()) <= MAX_NOTE
    assert note.endswith("…")


def test_an_object_without_generation_or_uid_has_one_too() -> None:
    made = event_of(config_map().item, FINDING, "watcher-1", NOW)
    assert made["metadata"]["name"].startswith("picker.")
    assert made["regarding"]["apiVersion"] == "v1"


def test_a_uid_that_is_no_text_becomes_one() -> None:
    assert event_of(objective(uid=5), FINDING, "watcher-1", NOW)["regarding"]["uid"] == "5"
