"""Messages as other versions wrote them, which may run beside this one: today's readers take them in, and today's
messages have all that those versions read."""

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from shared.bus import messages
from shared.bus.codec import decode, decode_fact, encode, encode_fact
from shared.bus.messages import FactEnvelope, Message
from tests.fuzz.targets.bus import Listener
from tests.unit.shared.bus.recorded.record import recording

RECORDINGS: dict[str, dict[str, str]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(Path(__file__).with_name("recorded").glob("*.json"))
}
RECORDED = pytest.mark.parametrize(
    ("what", "data"),
    [
        pytest.param(what, bytes.fromhex(text), id=f"{name}-{what}")
        for name, found in RECORDINGS.items()
        for what, text in found.items()
    ],
)
KINDS = {
    "FactEnvelope": "fact",
    "PrefixBatch": "prefix",
    "PrefixPiece": "piece",
    "PrefixRequest": "request",
}
"""What the fuzzing target calls a message, if not by its name."""


def missing(before: Any, today: Any) -> bool:
    """Whether a message lacks anything of another one: a field, or its value, or the value's type."""
    if isinstance(before, dict) and isinstance(today, dict):
        return any(name not in today or missing(value, today[name]) for name, value in before.items())
    if isinstance(before, list) and isinstance(today, list):
        return len(before) != len(today) or any(map(missing, before, today))
    return type(before) is not type(today) or before != today


@RECORDED
def test_a_message_loses_nothing_when_todays_code_reads_and_writes_it(what: str, data: bytes) -> None:
    message = decode(getattr(messages, what.partition(" ")[0]), data)
    assert not missing(msgspec.msgpack.decode(data), msgspec.msgpack.decode(encode(message)))
    if isinstance(message, FactEnvelope):
        fact = decode_fact(message.fact)
        assert not missing(msgspec.msgpack.decode(message.fact), msgspec.msgpack.decode(encode_fact(fact)))


@pytest.mark.parametrize("name", RECORDINGS)
def test_todays_readers_take_all_messages_in(name: str) -> None:
    listener = Listener()
    for what, text in RECORDINGS[name].items():
        kind, _, key = what.partition(" ")
        listener.hear(KINDS.get(kind, kind.lower()), key, [], bytes.fromhex(text))
    assert listener.malformed.note() is None
    assert list(listener.view.in_flight.peers()) == ["p1"]
    assert listener.members.ids == ("c1",)
    assert len(listener.candidates) == 1
    listener.check()


def test_the_recorder_knows_every_message() -> None:
    recorded = {what.partition(" ")[0] for what in recording()}
    assert recorded == {kind.__name__ for kind in get_args(Message)}
