"""Encoding and decoding, and the log of what can't be decoded."""

import tracemalloc
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from shared.bus.action_messages import ActionResult, Drain
from shared.bus.codec import MalformedLog, decode, decode_fact, encode, encode_fact, fact_digest
from shared.bus.columns import (
    endpoint_hash,
    pack_ages,
    pack_counts,
    pack_floats,
    pack_hashes,
    unpack_ages,
    unpack_counts,
    unpack_floats,
    unpack_hashes,
)
from shared.bus.errors import Malformed
from shared.bus.messages import (
    MAX_BLOCKS,
    MAX_FRAME_ENDPOINTS,
    Candidate,
    Epoch,
    Frame,
    Holder,
    Load,
    Member,
    Message,
    PrefixBatch,
    PrefixOrigin,
    PrefixPiece,
    PrefixRequest,
    Synced,
)
from shared.bus.publishable import fault
from shared.bus.query_messages import AnswerPiece, ViewQuery, make_query
from shared.bus.subjects import MAX_ID
from shared.model import Endpoint, Pool

ENDPOINT = Endpoint(id="default/a", name="a", address="10.0.0.1", port=8000, labels={"b": "1", "a": "2"})

MESSAGES: list[Message] = [
    Synced(epoch=1, sequence=2, count=3, digest=2**64 - 1),
    Epoch(epoch=1, owner="w"),
    Frame(
        sender="c",
        sent=1.5,
        sequence=7,
        ids=("a", "b"),
        columns={"x/p": pack_floats([1.0, np.nan])},
        ages={"x/p": pack_ages([0.1, 0.2]), "o/p": pack_ages([0.0, 0.0])},
        objects={"o/p": [["adapter"], None]},
    ),
    Load(sender="p", sent=1.0, sequence=1, ids=pack_hashes([1, 2]), requests=pack_counts([1, 2]), tokens=bytes(8)),
    PrefixBatch(
        sender="p",
        run=1,
        sequence=2,
        hashing="1: x",
        servers=pack_hashes([1, 2]),
        withdrawn=b"\0\1",
        counts=pack_counts([1, 2]),
        blocks=pack_hashes([3, 4, 5]),
    ),
    PrefixRequest(sender="p", run=1, after=2),
    make_query(ViewQuery(endpoint="e"), 2.0),
    AnswerPiece(sender="p", tier="picker", run=1, number=0, more=True, content=b"{"),
    Drain(endpoint="e", drain=True, by="somebody"),
    ActionResult(sender="w", error="why not"),
    PrefixPiece(
        run=1,
        sequence=2,
        batches=[b"x"],
        origins=[PrefixOrigin(id="p", run=1, sequence=2)],
        servers=pack_hashes([1]),
        counts=pack_counts([2]),
        blocks=pack_hashes([3, 4]),
        marks=pack_hashes([1, 2]),
    ),
    Member(id="c", tier="collector", sent=1.0),
    Candidate(owner="w", fitness=(1, 0)),
    Holder(owner="w"),
]


def prefixes(**fields: Any) -> PrefixBatch:
    """A sound batch of one block, but for these fields."""
    sound = PrefixBatch(
        sender="p",
        run=1,
        sequence=1,
        hashing="",
        servers=bytes(8),
        withdrawn=b"\0",
        counts=pack_counts([1]),
        blocks=bytes(8),
    )
    return replace(sound, **fields)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_way_with_fields_that_a_reader_doesnt_know_and_not_with_another_tag(
    message: Message,
) -> None:
    assert decode(type(message), encode(message)) == message
    fields = msgspec.msgpack.decode(encode(message))
    assert decode(type(message), msgspec.msgpack.encode(fields | {"added-later": [1, 2]})) == message
    with pytest.raises(Malformed, match="other/9"):
        decode(type(message), msgspec.msgpack.encode(fields | {"type": "other/9"}))


@given(st.binary())
def test_arbitrary_bytes_are_a_message_or_malformed_and_nothing_else(data: bytes) -> None:
    for message in MESSAGES:
        with pytest.raises(Malformed):
            decode(type(message), data)
    with pytest.raises(Malformed):
        decode_fact(data)


def test_a_text_that_is_no_utf_8_is_malformed() -> None:
    message = encode(Member(id="name", tier="collector", sent=1.0))
    with pytest.raises(Malformed, match="utf-8"):
        decode(Member, message.replace(b"name", b"nam\xff"))


def test_a_fact_of_an_unknown_kind_and_deeply_nested_bytes_are_malformed() -> None:
    with pytest.raises(Malformed, match="endpoint/2"):
        decode_fact(msgspec.msgpack.encode({"type": "endpoint/2", "id": "x"}))
    with pytest.raises(Malformed):
        decode(Frame, b"\x81\xa3foo" + b"\x91" * 100_000)


@pytest.mark.parametrize("field", ["address", "host", "metrics_host", "node_address"])
@pytest.mark.parametrize("text", ["10.0.0.1\r\nX: y", "10.0.0.é", "10.0.0.1 ", "\u0661"])
def test_an_endpoint_whose_address_no_request_can_have_is_neither_published_nor_read(field: str, text: str) -> None:
    made = replace(Endpoint(id="d/a", name="a", address="10.0.0.1", port=80), **{field: text})
    assert (fault(made) or "").startswith(f"{field}: {text!r} isn't an address")
    with pytest.raises(Malformed, match=f"no endpoint: {field}: "):
        decode_fact(encode_fact(made))


FRAME = Frame(sender="c", sent=0.0, sequence=1, ids=("a",), columns={"x/p": bytes(8)}, ages={"x/p": bytes(4)})
LONG = "x" * 257
LOAD = Load(sender="p", sent=0.0, sequence=1, ids=bytes(8), requests=bytes(4), tokens=bytes(4))
BATCH = PrefixBatch(sender="p", run=1, sequence=1, hashing="")
LONG_ID = "\U0001f600" * (MAX_ID // 12) + "x"
"""Each of these characters takes twelve bytes of a subject."""


@pytest.mark.parametrize(
    ("good", "change", "fault"),
    [
        (FRAME, {"columns": {"x/p": b"1234567"}}, "column 'x/p' has 7 bytes, 8 are needed for 1 endpoints"),
        (FRAME, {"ages": {"x/p": b"12345"}}, "ages 'x/p' has 5 bytes, 4 are needed"),
        (FRAME, {"objects": {"o/p": []}}, "objects 'o/p' has 0 values for 1 endpoints"),
        (FRAME, {"ages": {}}, "'x/p' is in only one of them"),
        (FRAME, {"absent": {"y/p": [0, 1]}}, "absent 'y/p' has position 1, there are 1 endpoints"),
        (FRAME, {"absent": {"y/p": [-1]}}, "absent 'y/p' has position -1"),
        (FRAME, {"ids": tuple(map(str, range(MAX_FRAME_ENDPOINTS + 1)))}, "1001 endpoints in a frame, at most 1000"),
        (FRAME, {"columns": {LONG: bytes(8)}, "ages": {LONG: bytes(4)}}, "an attribute's name of 257 characters"),
        (FRAME, {"objects": {LONG: [1]}}, "an attribute's name of 257 characters"),
        (FRAME, {"absent": {LONG: []}}, "an attribute's name of 257 characters"),
        (LOAD, {"ids": bytes(7)}, "no multiple of 8"),
        (LOAD, {"tokens": bytes(8)}, "tokens has 8 bytes, 4 are needed"),
        (FRAME, {"sender": LONG_ID}, f"takes {MAX_ID + 1} bytes of a subject"),
        (LOAD, {"sender": LONG_ID}, f"takes {MAX_ID + 1} bytes of a subject"),
        (BATCH, {"sender": LONG_ID}, f"takes {MAX_ID + 1} bytes of a subject"),
        (PrefixRequest(sender="p"), {"sender": LONG_ID}, f"takes {MAX_ID + 1} bytes of a subject"),
        (Member(id="c", tier="collector", sent=0.0), {"id": LONG_ID}, f"takes {MAX_ID + 1} bytes of a subject"),
        (Candidate(owner="w", fitness=()), {"owner": LONG_ID}, f"takes {MAX_ID + 1} bytes of a subject"),
    ],
)
def test_a_message_that_contradicts_itself_or_a_limit_is_malformed(
    good: Message, change: dict[str, Any], fault: str
) -> None:
    decode(type(good), encode(good))
    with pytest.raises(Malformed, match=fault):
        decode(type(good), encode(msgspec.structs.replace(good, **change)))


def test_equal_facts_have_equal_bytes_whatever_the_order_of_their_labels() -> None:
    other = msgspec.structs.replace(ENDPOINT, labels={"a": "2", "b": "1"})
    assert encode_fact(other) == encode_fact(ENDPOINT)


def test_a_digest_depends_on_the_key_and_on_the_fact() -> None:
    raw = encode_fact(ENDPOINT)
    digests = {
        fact_digest("a.endpoint.x", raw),
        fact_digest("a.endpoint.y", raw),
        fact_digest("a.endpoint.x", encode_fact(Pool(name="p"))),
    }
    assert len(digests) == 3
    assert all(0 <= digest < 2**64 for digest in digests)


def test_columns_survive_the_way_little_endian() -> None:
    assert pack_floats([1.0]) == b"\x00\x00\x00\x00\x00\x00\xf0\x3f"
    assert pack_hashes([1]) == b"\x01" + bytes(7)
    np.testing.assert_array_equal(unpack_floats(pack_floats([1.5, np.nan])), [1.5, np.nan])
    np.testing.assert_array_equal(unpack_ages(pack_ages([0.25])), [0.25])
    np.testing.assert_array_equal(unpack_hashes(pack_hashes([2**64 - 1, 0])), np.array([2**64 - 1, 0], "u8"))
    np.testing.assert_array_equal(unpack_counts(pack_counts([0, 2**32, -1])), [0, 2**32 - 1, 0])
    assert endpoint_hash("default/a") == endpoint_hash("default/a") != endpoint_hash("default/b")


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_malformed_messages_are_counted_and_logged_once_a_minute_per_sender() -> None:
    clock = Clock()
    log = MalformedLog(clock)
    with capture_logs() as lines:
        assert log.report("a", "bad", subject="s.a")
        assert not log.report("a", "bad")
        assert log.report("b", "bad")
        clock.now += 59.9
        assert not log.report("a", "bad")
        clock.now += 0.2
        assert log.report("a", Malformed("worse"))
    assert log.total == 5
    assert [(line["sender"], line["since_last_line"]) for line in lines] == [("a", 1), ("b", 1), ("a", 3)]
    assert lines[-1]["reason"] == "worse"


def test_the_log_of_malformed_messages_stays_small_whoever_sends() -> None:
    clock = Clock()
    log = MalformedLog(clock, max_senders=10)
    with capture_logs() as lines:
        for number in range(1000):
            log.report(f"sender-{number}", "bad")
    assert len(lines) == 11
    assert lines[-1]["sender"] == MalformedLog.OTHERS
    assert log.total == 1000
    clock.now += 61
    with capture_logs() as lines:
        log.report("somebody new", "bad")
    assert lines[0]["sender"] == "somebody new"


@pytest.mark.parametrize(
    "message",
    [
        Frame(sender="c", sent=1.0, sequence=1, ids=("a",), absent={f"{number}": [] for number in range(5000)}),
        Frame(sender="c", sent=1.0, sequence=1, ids=("a",), absent={"x/p": [0] * 100_000}),
        Frame(
            sender="c",
            sent=1.0,
            sequence=1,
            ids=("a",) * 1000,
            absent={f"{number}": [0] * 1000 for number in range(101)},
        ),
        Frame(sender="c" * 5000, sent=1.0, sequence=1, ids=()),
        Member(id="c" * 5000, tier="collector", sent=1.0),
        Candidate(owner="c" * 5000, fitness=()),
        Candidate(owner="c", fitness=(1,) * 1000),
        prefixes(sender="c" * 5000),
        prefixes(hashing="x" * 500),
        prefixes(servers=bytes(8 * 2 * MAX_BLOCKS), withdrawn=bytes(2 * MAX_BLOCKS), counts=bytes(8 * MAX_BLOCKS)),
        prefixes(counts=pack_counts([MAX_BLOCKS + 1]), blocks=bytes(8 * (MAX_BLOCKS + 1))),
        PrefixRequest(sender="c" * 5000),
        PrefixPiece(run=1, sequence=1, batches=[b""] * 5000),
        PrefixPiece(run=1, sequence=1, origins=[PrefixOrigin(id="p", run=1, sequence=1)] * 100),
        PrefixPiece(run=1, sequence=1, origins=[PrefixOrigin(id="p" * 5000, run=1, sequence=1)]),
    ],
)
def test_a_message_with_more_than_anybody_needs_is_malformed(message: Message) -> None:
    with pytest.raises(Malformed):
        decode(type(message), encode(message))


@pytest.mark.parametrize(
    "message",
    [
        prefixes(run=-1),
        prefixes(sequence=2**63),
        prefixes(withdrawn=b""),
        prefixes(withdrawn=b"\0\0"),
        prefixes(servers=bytes(7)),
        prefixes(counts=pack_counts([2])),
        prefixes(counts=bytes(3)),
        prefixes(counts=bytes(4), blocks=b""),
        prefixes(servers=bytes(16), withdrawn=bytes(2), counts=pack_counts([0, 1])),
        prefixes(blocks=bytes(9)),
        prefixes(servers=bytes(16), withdrawn=bytes(2), counts=pack_counts([2**32 - 1, 2])),
        PrefixPiece(run=1, sequence=1, servers=bytes(8), counts=pack_counts([1]), blocks=bytes(8)),
    ],
)
def test_prefix_placements_that_contradict_themselves_are_malformed(message: Message) -> None:
    with pytest.raises(Malformed):
        decode(type(message), encode(message))


@pytest.mark.parametrize("field", [False, True], ids=["a name", "the field"])
def test_of_what_a_frame_has_twice_only_the_last_is_read(field: bool) -> None:
    def packed(*values: bytes) -> bytes:
        return bytes([0x80 + len(values) // 2]) + b"".join(values)

    text = msgspec.msgpack.encode
    many = text([[[]] * 1000] * 1000)
    twice = [text("x/p"), many, text("x/p"), text([5])]
    objects = [text("objects"), packed(*twice)]
    if field:
        objects = [text("objects"), packed(*twice[:2]), text("objects"), packed(*twice[2:])]
    known = {"type": "frame/1", "sender": "c", "sent": 1.0, "sequence": 1, "ids": ["a"], "ages": {"x/p": bytes(4)}}
    message = packed(*(text(part) for item in known.items() for part in item), *objects)
    tracemalloc.start()
    try:
        assert decode(Frame, message).objects == {"x/p": [5]}
        assert tracemalloc.get_traced_memory()[1] < 4 * len(message), "a list takes fifty bytes"
    finally:
        tracemalloc.stop()


def test_the_log_says_no_more_of_a_message_than_is_worth_reading() -> None:
    with capture_logs() as logs:
        MalformedLog(lambda: 0.0).report("x", "y" * 1_000_000)
    assert len(str(logs)) < 1000


def packed_frame(**fields: object) -> bytes:
    return msgspec.msgpack.encode(
        {"type": "frame/1", "sender": "c", "sent": 1.0, "sequence": 1, "ids": ["a"], **fields}
    )


@pytest.mark.parametrize(
    "value",
    [
        [[]] * 1_000_000,
        ["x"] * 20_000,
        {f"{number}": 1 for number in range(10_000)},
        [["x" * 20_000]],
        ["x" * 2_000] * 100,
    ],
    ids=["lists", "many texts", "a large map", "a long text in a list", "long texts"],
)
def test_a_value_of_a_frame_that_takes_long_to_read_makes_it_malformed(value: object) -> None:
    with pytest.raises(Malformed, match="objects 'o/p' has a value of"):
        decode(Frame, packed_frame(objects={"o/p": [value]}, ages={"o/p": bytes(4)}))


@pytest.mark.parametrize("value", [["x"] * 500, [[[]] * 500], {"a": [1] * 500}], ids=["names", "lists", "a map"])
def test_many_values_of_a_frame_are_together_as_many_as_one_message_is_to_take(value: object) -> None:
    def sent(endpoints: int) -> Frame:
        ids = [f"e{number}" for number in range(endpoints)]
        ages = {"o/p": bytes(4 * endpoints)}
        return decode(Frame, packed_frame(ids=ids, objects={"o/p": [value] * endpoints}, ages=ages))

    assert len(sent(35).objects["o/p"]) == 35
    with pytest.raises(Malformed, match="objects of more than 20000 names, or bytes of other values"):
        sent(41)


def test_long_names_of_a_frame_count_as_several() -> None:
    def sent(attributes: int) -> Frame:
        objects = {f"o{number}/p": [["x" * 1000] * 128] for number in range(attributes)}
        return decode(Frame, packed_frame(objects=objects, ages={name: bytes(4) for name in objects}))

    assert len(sent(9).objects) == 9
    with pytest.raises(Malformed, match="objects of more than 20000 names"):
        sent(10)


def test_empty_lists_of_a_frame_count_too() -> None:
    objects: dict[str, list[list[str]]] = {f"o{number}/p": [[]] * 1000 for number in range(21)}
    packed = packed_frame(ids=[""] * 1000, objects=objects, ages={name: bytes(4000) for name in objects})
    with pytest.raises(Malformed, match="objects of more than 20000 names"):
        decode(Frame, packed)


def test_places_without_a_value_are_bounded_too() -> None:
    def sent(names: int) -> Frame:
        objects: dict[str, list[None]] = {f"o{number}/p": [None] * 1000 for number in range(names)}
        ages = {name: bytes(4000) for name in objects}
        return decode(Frame, packed_frame(ids=[""] * 1000, objects=objects, ages=ages))

    assert len(sent(100).objects) == 100
    with pytest.raises(Malformed, match="objects has 101000 places, at most 100000 are allowed"):
        sent(101)


def test_a_long_list_of_names_is_a_value_like_others() -> None:
    names = [f"a model of a name that is rather long {number}" for number in range(2000)]
    assert decode(Frame, packed_frame(objects={"o/p": [names]}, ages={"o/p": bytes(4)})).objects == {"o/p": [names]}
