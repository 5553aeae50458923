"""Names on the bus: escaping loses nothing, installations and pools never meet."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bus import subjects
from shared.bus.errors import BusOptionError
from shared.bus.subjects import (
    MAX_ID,
    Key,
    Subjects,
    escape,
    fact_key,
    id_fault,
    parse_key,
    pool_token,
    split_pool,
    unescape,
)
from shared.model import Configuration, Endpoint, Model, ModelRewrite, Objective, Pool

ALLOWED = re.compile(r"[-/_=A-Za-z0-9]+")


@settings(max_examples=40)
@given(st.text())
def test_escaping_gives_one_token_that_nats_allows_and_can_be_undone(text: str) -> None:
    token = escape(text)
    assert ALLOWED.fullmatch(token)
    assert unescape(token) == text


def test_escape_leaves_ordinary_ids_readable() -> None:
    assert escape("default/vllm-0_1") == "default/vllm-0_1"
    assert escape("[fd00::1]:8000") == "=5Bfd00=3A=3A1=5D=3A8000"
    assert escape("a.b c*>=é") == "a=2Eb=20c=2A=3E=3D=C3=A9"
    assert escape("") == "="


@pytest.mark.parametrize("token", ["", "a.b", "=4", "=41", "=2e", "a b", "=FF", "=="])
def test_unescape_refuses_what_escape_cannot_have_made(token: str) -> None:
    with pytest.raises(ValueError, match="no escaped token"):
        unescape(token)


@settings(max_examples=40)
@given(st.text(), st.text())
def test_a_pool_token_is_one_token_and_can_be_split(namespace: str, name: str) -> None:
    token = pool_token(namespace, name)
    assert ALLOWED.fullmatch(token)
    assert split_pool(token) == (namespace, name)
    assert pool_token("a_b", "c") != pool_token("a", "b_c")


@pytest.mark.parametrize("token", ["default", "a_b_c", "", "a_b.c"])
def test_split_pool_refuses_what_is_no_pool_token(token: str) -> None:
    with pytest.raises(ValueError, match=r"no pool token|no escaped token"):
        split_pool(token)


@pytest.mark.parametrize(
    ("fact", "key", "parsed"),
    [
        (
            Endpoint(id="ns/pod:8000", name="pod", address="10.0.0.1", port=8000),
            "default_p.endpoint.ns/pod=3A8000",
            Key("default_p", "endpoint", "ns/pod:8000"),
        ),
        (Pool(name="p"), "default_p.pool", Key("default_p", "pool")),
        (Objective(name="a.b"), "default_p.objective.a=2Eb", Key("default_p", "objective", "a.b")),
        (ModelRewrite(name="r", rules=()), "default_p.rewrite.r", Key("default_p", "rewrite", "r")),
        (Model(name="m", model_name="x"), "default_p.model.m", Key("default_p", "model", "m")),
        (Configuration(text=""), "default_p.config", Key("default_p", "config")),
    ],
)
def test_every_kind_of_fact_has_its_key(
    fact: Endpoint | Pool | Objective | ModelRewrite | Model | Configuration, key: str, parsed: Key
) -> None:
    assert fact_key(pool_token("default", "p"), fact) == key
    assert parse_key(key) == parsed


@pytest.mark.parametrize("key", ["epoch", "p.endpoint", "p.pool.x", "p.other.x", "p.endpoint.a.b", "p.endpoint.=2e"])
def test_parse_key_refuses_what_is_no_key_of_a_pool(key: str) -> None:
    with pytest.raises(ValueError, match=r"no key of a pool|no escaped token"):
        parse_key(key)


def every_name(subjects: Subjects) -> set[str]:
    one, other = "default_p", "collector"
    return {
        *(subjects.endpoints_bucket, subjects.attributes_bucket, subjects.leases_bucket),
        *(subjects.fact("default_p.pool"), subjects.republished("default_p.pool")),
        *(subjects.frame(one, "c", 0), subjects.frames(one), subjects.load(one, "a"), subjects.loads(one)),
        *(subjects.lease("watcher"), subjects.lease_released("watcher")),
        *(subjects.prefix_batch(one, "a"), subjects.prefix_batches(one), subjects.prefix_dump(one, "a")),
        subjects.prefix_peers(one),
        *(subjects.member(one, other, "a"), subjects.members(one, other)),
        *(subjects.candidate("watcher", "w1"), subjects.candidates("watcher")),
    }


def test_a_prefix_separates_installations_completely() -> None:
    assert not every_name(Subjects()) & every_name(Subjects("staging"))
    assert not every_name(Subjects("other")) & every_name(Subjects("staging"))


def test_names_are_those_of_the_design() -> None:
    subjects = Subjects()
    assert subjects.endpoints_bucket == "endpoints"
    assert subjects.attributes_bucket == "attributes"
    assert subjects.leases_bucket == "leases"
    assert subjects.stream("endpoints") == "KV_endpoints"
    assert subjects.fact("epoch") == "$KV.endpoints.epoch"
    assert subjects.republished(">") == "pointsman.kv.endpoints.>"
    assert subjects.frame("default_p", "c.1", 2) == "$KV.attributes.default_p.c=2E1.2"
    assert subjects.load("default_p", "picker-1") == "pointsman.default_p.load.picker-1"
    assert subjects.member("default_p", "collector", "c1") == "pointsman.default_p.member.collector.c1"
    staging = Subjects("staging")
    assert staging.endpoints_bucket == "staging_endpoints"
    assert staging.fact("epoch") == "$KV.staging_endpoints.epoch"
    assert staging.republished(">") == "staging.kv.endpoints.>"


@pytest.mark.parametrize("prefix", ["", "a.b", "a b", "ü", "a>", "a" * 101])
def test_a_prefix_that_nats_would_not_take_is_refused_with_what_is_allowed(prefix: str) -> None:
    with pytest.raises(BusOptionError, match="are allowed"):
        Subjects(prefix)


@pytest.mark.parametrize("character", ["a", ".", "é", "\U0001f600"])
def test_an_id_is_measured_as_it_stands_in_a_subject(character: str) -> None:
    longest = character * (MAX_ID // len(escape(character)))
    assert id_fault(longest) is None
    assert "1536 are allowed" in (id_fault(longest + character) or "")


def test_a_long_id_is_refused_without_escaping_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message may have one of a megabyte, whose escaping takes a second."""
    expected = len(escape(":é" * 1000))
    monkeypatch.setattr(subjects, "escape", None)
    assert id_fault(":é" * 1000) == f"an id that takes {expected} bytes of a subject; 1536 are allowed"


def test_the_key_and_the_sender_are_found_in_a_subject() -> None:
    subjects = Subjects("staging")
    assert subjects.republished_key("staging.kv.endpoints.default_p.pool") == "default_p.pool"
    with pytest.raises(ValueError, match="no republish subject"):
        subjects.republished_key("pointsman.kv.endpoints.default_p.pool")
    assert Subjects.sender(subjects.load("default_p", "a:1")) == "a:1"
    assert Subjects.sender(subjects.frame("default_p", "a.b", 3), -2) == "a.b"
    assert Subjects.sender("x.=zz") == "=zz"
