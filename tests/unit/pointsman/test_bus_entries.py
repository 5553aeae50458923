"""Entries of the buckets, decoded; and the keys that users may mean."""

from typing import Any

import msgspec
import pytest
import yaml

from pointsman.bus import spellings, yaml_lines
from pointsman.bus_entries import decode_entry, summary
from shared.bus.codec import encode, encode_fact
from shared.bus.columns import pack_ages, pack_floats
from shared.bus.jetstream import Stored
from shared.bus.messages import Epoch, FactEnvelope, Frame, Holder, Message, Synced
from shared.model import Objective

OBJECTIVE = Objective(name="o", priority=3)
FRAME = Frame(
    sender="c",
    sent=1.0,
    sequence=2,
    ids=("a", "b"),
    columns={"queue/core": pack_floats([4.0, float("nan")])},
    ages={"queue/core": pack_ages([0.25, 0.0]), "adapters/core": pack_ages([0.0, 0.5])},
    objects={"adapters/core": [None, ["x"]]},
    absent={"kv/core": [1]},
)


@pytest.mark.parametrize(
    ("message", "kind", "expected", "content"),
    [
        (
            FactEnvelope(epoch=1, sequence=2, fact=msgspec.Raw(encode_fact(OBJECTIVE))),
            "fact",
            "objective/1 of epoch 1",
            {"sequence": 2, "fact": {"type": "objective/1", "name": "o", "priority": 3}},
        ),
        (
            Synced(epoch=1, sequence=2, count=3, digest=255),
            "synced",
            "3 facts @ 00000000000000ff",
            {"digest": "00000000000000ff"},
        ),
        (Epoch(epoch=1, owner="w"), "epoch", "epoch of w", {"epoch": 1}),
        (Holder(owner="w"), "lease", "lease of w", {"owner": "w"}),
        (
            FRAME,
            "frame",
            "frame of c: 2 endpoints",
            {
                "endpoints": {
                    "a": {"queue/core": {"value": 4.0, "age": 0.25}},
                    "b": {"adapters/core": {"value": ["x"], "age": 0.5}},
                },
                "absent": {"kv/core": ["b"]},
            },
        ),
    ],
)
def test_every_kind_of_entry_is_decoded(message: Message, kind: str, expected: str, content: dict[str, Any]) -> None:
    entry = decode_entry("key", Stored("$KV.b.key", encode(message), {}, 5))
    assert (entry.kind, summary(entry), entry.revision) == (kind, expected, 5)
    found = entry.document()
    assert {name: found[name] for name in content} == content


def test_what_was_deleted_or_cant_be_read_is_told() -> None:
    deleted = decode_entry("key", Stored("$KV.b.key", b"", {"KV-Operation": "PURGE"}, 5))
    assert (deleted.kind, summary(deleted)) == ("deleted", "deleted")
    unreadable = decode_entry("key", Stored("$KV.b.key", b"\xc1", {}, 5))
    assert unreadable.kind == "unreadable"
    assert unreadable.document()["raw"] == "c1"


NESTED: list[Any] = []
for _ in range(600):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], None),
        ([msgspec.msgpack.Ext(5, b"ab")], {"extension": 5, "data": "6162"}),
        ([{"a": [msgspec.msgpack.Ext(5, b"")]}], {"a": [{"extension": 5, "data": ""}]}),
        ([{(1, (2,)): {None: 3}}], {"[1, [2]]": {"None": 3}}),
        ([NESTED], None),
        ([{(1,): NESTED}], None),
    ],
    ids=["none", "extension", "extension inside", "keys", "nested", "nested in a map"],
)
def test_values_that_no_collector_sends_are_shown_in_both_formats(values: list[Any], expected: Any) -> None:
    frame = Frame(
        sender="c",
        sent=0.0,
        sequence=1,
        ids=("a",)[: len(values)],
        objects={"x/y": values},
        ages={"x/y": pack_ages([0.0] * len(values))},
    )
    entry = decode_entry("key", Stored("$KV.b.key", encode(frame), {}, 5))
    assert (entry.kind, summary(entry)) == ("frame", f"frame of c: {len(values)} endpoints")
    [from_yaml] = yaml.safe_load_all("\n".join(yaml_lines([entry.document()])))
    assert from_yaml == msgspec.json.decode(msgspec.json.encode(entry.document()))
    if expected is not None:
        assert from_yaml["endpoints"]["a"]["x/y"]["value"] == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("epoch", ["epoch", "p_q.epoch"]),
        ("endpoint.default/a:1", ["endpoint.default/a=3A1", "p_q.endpoint.default/a=3A1"]),
        ("p_q.endpoint.a", ["p_q.endpoint.a", "p_q.p_q.endpoint.a", "p_q.endpoint=2Ea", "p_q.p_q.endpoint=2Ea"]),
        ("a b", ["a=20b"]),
    ],
)
def test_a_key_may_lack_its_pool_and_its_escapes(key: str, expected: list[str]) -> None:
    assert spellings("p_q", key) == expected


@pytest.mark.parametrize("text", ["\u202eabc", "a\u2028b", "\U000e0041: x # y", "\x9b2J", "a\n\u200bb", "\x85", "\t\\"])
def test_entries_in_yaml_control_no_terminal_and_can_be_read_back(text: str) -> None:
    documents: list[dict[str, Any]] = [{"name": text, text: [text * 99]}, {"name": "é 日本\nx"}]
    lines = yaml_lines(documents)
    assert all(line.isprintable() for line in lines)
    assert list(yaml.safe_load_all("\n".join(lines))) == documents
    assert lines[-3:] == ["name: 'é 日本", "", "  x'"]
