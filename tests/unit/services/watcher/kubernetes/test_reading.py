"""What a resource comes to for a pool."""

from typing import Any

import pytest

from services.watcher.kubernetes import reading as module
from services.watcher.kubernetes.reading import read_item
from services.watcher.kubernetes.resource import JsonObject
from services.watcher.resources import PoolId
from services.watcher.sources import Rejected, Reset
from shared.model import Objective
from tests.unit.services.watcher.kubernetes.readings import EXPERIMENTAL, LLAMA, STABLE, item_of, objective, pool


def read(item: JsonObject, served: PoolId = LLAMA) -> Reset | Rejected | str:
    return read_item(item, item["kind"], "origin", served)


def problems(item: JsonObject) -> list[str]:
    found = read(item)
    assert isinstance(found, Rejected)
    return [str(one) for one in found.problems]


def test_what_refers_to_the_pool_is_its_fact() -> None:
    found = read(objective(priority=3))
    assert isinstance(found, Reset)
    assert found.documents.resources == (Objective(name="premium", priority=3),)


def test_what_refers_to_another_pool_is_left_out_with_the_reason_however_bad_it_is() -> None:
    reason = "for pool 'other', and default/llama is served"
    assert read(objective(pool="other")) == reason
    assert read(objective(pool="other", priority="high")) == reason


@pytest.mark.parametrize(
    ("group", "groups", "ours"),
    [
        (None, {STABLE}, True),
        (None, {EXPERIMENTAL}, False),
        (STABLE, {STABLE}, True),
        (STABLE, {STABLE, EXPERIMENTAL}, True),
        (EXPERIMENTAL, {STABLE}, False),
        (EXPERIMENTAL, {EXPERIMENTAL}, True),
        (EXPERIMENTAL, set(), True),
    ],
)
def test_what_refers_to_a_pool_of_the_name_is_for_it_if_the_group_is_one_of_its_own(
    group: str | None, groups: set[str], ours: bool
) -> None:
    reference = {"name": "llama"} | ({"group": group} if group else {})
    item = item_of("InferenceObjective", "premium", {"poolRef": reference, "priority": 1})
    found = read_item(item, "InferenceObjective", "origin", LLAMA, groups)
    if ours:
        assert isinstance(found, Reset)
    else:
        assert found == f"for pool 'llama' of {group or STABLE}, and default/llama is served"


def test_of_a_model_the_group_does_not_count_which_its_definition_fills_in() -> None:
    spec = {"poolRef": {"name": "llama", "group": EXPERIMENTAL}, "modelName": "chat"}
    item = item_of("InferenceModel", "chat", spec)
    assert isinstance(read_item(item, "InferenceModel", "origin", LLAMA, {STABLE}), Reset)


def test_a_resource_that_nobody_foresaw_is_refused_like_any_other_bad_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr(module, "read_resource", fail)
    assert problems(objective()) == ["document: it can't be read: RuntimeError: surprise"]


@pytest.mark.parametrize("spec", [{}, {"poolRef": 1}, {"poolRef": {"name": 7}}], ids=str)
def test_what_says_no_pool_is_refused_rather_than_left_out(spec: dict[str, Any]) -> None:
    assert any(one.startswith("spec.poolRef") for one in problems(item_of("InferenceObjective", "bad", spec)))


def test_what_is_being_deleted_is_left_out() -> None:
    assert read(objective(deletionTimestamp="2026-01-01T00:00:00Z")) == "it is being deleted"


def test_another_pool_is_left_out() -> None:
    assert read(pool("other", x="1")) == "default/llama is served"


def test_a_pool_needs_a_port() -> None:
    spec: dict[str, Any] = {"selector": {"matchLabels": {"x": "1"}}, "targetPorts": []}
    expected = "spec.targetPorts: empty; the port at which the model servers serve is needed"
    assert problems(item_of("InferencePool", "llama", spec, STABLE)) == [expected]
