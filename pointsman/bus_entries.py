"""Decodes entries of the buckets, for people and programs."""

from collections.abc import Mapping
from math import isnan
from typing import Any

import msgspec
from msgspec import Struct

from shared.bus import jetstream
from shared.bus.codec import decode, decode_fact, fact_digest
from shared.bus.columns import unpack_ages, unpack_floats
from shared.bus.errors import Malformed
from shared.bus.messages import Epoch, FactEnvelope, Frame, Holder, Synced
from shared.service.status import hexadecimal

SHOWN = 256
"""Bytes of an entry that can't be decoded which are shown."""
MAX_DEPTH = 64
"""Levels of an attribute's value that are shown."""


class Entry(Struct, frozen=True):
    """An entry, decoded."""

    key: str
    revision: int
    size: int
    """Bytes."""
    kind: str
    """`fact`, `synced`, `epoch`, `frame`, `lease`, `deleted` or `unreadable`."""
    content: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """What is written of it."""
        return {"key": self.key, "revision": self.revision, "kind": self.kind, **self.content}


def decode_entry(key: str, stored: jetstream.Stored) -> Entry:
    """Whatever it is."""
    kind, content = _content(key, stored)
    return Entry(key, stored.sequence, len(stored.data), kind, content)


def summary(entry: Entry) -> str:
    """What it is, in some words."""
    content = entry.content
    match entry.kind:
        case "fact":
            return f"{content['fact']['type']} of epoch {content['epoch']}"
        case "synced":
            return f"{content['count']} facts @ {content['digest']}"
        case "frame":
            return f"frame of {content['sender']}: {len(content['endpoints'])} endpoints"
        case "lease" | "epoch":
            return f"{entry.kind} of {content['owner']}"
        case "unreadable":
            return str(content["problem"])
    return entry.kind


def _content(key: str, stored: jetstream.Stored) -> tuple[str, Mapping[str, Any]]:
    if operation := stored.headers.get(jetstream.OPERATION):
        return "deleted", {"operation": operation}
    problems: list[str] = []
    for read in (_fact, _synced, _epoch, _frame, _lease):
        try:
            return read(key, stored.data)
        except Malformed as error:
            problems.append(str(error))
    # a message's tag tells what it was meant to be: that decoder's complaint is the longest way in
    problem = next((text for text in problems if "Invalid value" not in text), problems[0])
    return "unreadable", {"problem": problem, "raw": stored.data[:SHOWN].hex()}


def _fact(key: str, data: bytes) -> tuple[str, Mapping[str, Any]]:
    envelope = decode(FactEnvelope, data)
    fact = decode_fact(envelope.fact)
    return "fact", {
        "epoch": envelope.epoch,
        "sequence": envelope.sequence,
        "digest": hexadecimal(fact_digest(key, envelope.fact)),
        "fact": msgspec.to_builtins(fact),
    }


def _synced(_: str, data: bytes) -> tuple[str, Mapping[str, Any]]:
    synced = decode(Synced, data)
    return "synced", {**msgspec.structs.asdict(synced), "digest": hexadecimal(synced.digest)}


def _epoch(_: str, data: bytes) -> tuple[str, Mapping[str, Any]]:
    return "epoch", msgspec.structs.asdict(decode(Epoch, data))


def _lease(_: str, data: bytes) -> tuple[str, Mapping[str, Any]]:
    return "lease", msgspec.structs.asdict(decode(Holder, data))


def _frame(_: str, data: bytes) -> tuple[str, Mapping[str, Any]]:
    """By endpoint: attributes with their ages when the frame was sent."""
    frame = decode(Frame, data)
    endpoints: dict[str, dict[str, Any]] = {id: {} for id in frame.ids}
    for name, packed in frame.ages.items():
        ages = unpack_ages(packed).tolist()
        objects = frame.objects.get(name)
        values: list[Any] = unpack_floats(frame.columns[name]).tolist() if objects is None else objects
        for id, value, age in zip(frame.ids, values, ages, strict=True):
            if value is not None and not (isinstance(value, float) and isnan(value)):
                endpoints[id][name] = {"value": _plain(value), "age": round(age, 3)}
    absent = {name: [frame.ids[position] for position in positions] for name, positions in frame.absent.items()}
    return "frame", {
        "sender": frame.sender,
        "run": frame.run,
        "sequence": frame.sequence,
        "sent": frame.sent,
        "endpoints": endpoints,
        "absent": absent,
    }


def _plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON and YAML can represent it: in MessagePack, any client of the bus can send others."""
    if isinstance(value, list | tuple | dict) and depth >= MAX_DEPTH:
        return f"more than {MAX_DEPTH} levels"
    match value:
        case list() | tuple():
            return [_plain(each, depth + 1) for each in value]
        case dict():
            return {
                key if isinstance(key, str) else str(_plain(key, depth + 1)): _plain(each, depth + 1)
                for key, each in value.items()
            }
        case msgspec.msgpack.Ext():
            return {"extension": value.code, "data": bytes(value.data).hex()}
    return value
