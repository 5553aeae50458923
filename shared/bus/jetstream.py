"""The few JetStream operations that the bus needs, as plain requests with time-outs that the caller sets.

A bucket is a stream of the kind that `nats kv` knows: `KV_<bucket>`, subjects `$KV.<bucket>.>`. nats-py's own helpers
aren't used: their time-outs are hidden, and its watch stays silent after a restart of the server.
Protocol: https://docs.nats.io/reference/reference-protocols/nats_api_reference and ADR-8 (key-value), ADR-31 (direct
gets), ADR-43 (time to live per message) of github.com/nats-io/nats-architecture-and-design.
"""

import asyncio
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from shared.bus.client import NatsClient
from shared.bus.connection import Bus
from shared.bus.errors import BusError, JetStreamError, NoRoom, WrongLastSequence
from shared.bus.replies import BEFORE, PENDING, SEQUENCE, STREAM, SUBJECT, status
from shared.tasks import TURN

WRONG_LAST_SEQUENCE: Final = 10071
STREAM_NOT_FOUND: Final = 10059
STREAM_DIFFERS: Final = 10058
NO_MESSAGE: Final = 10037
SEQUENCE_NOT_FOUND: Final = 10043
DELETE_FAILED: Final = 10057
"""Such as: the stream doesn't permit it."""
NO_ROOM: Final = frozenset({10002, 10023, 10047, 10077})
"""The account, the server, or the store is full; the stream has as many bytes as its administrator allows."""

EXPECTED_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
OPERATION: Final = "KV-Operation"

PAGE: Final = 500
"""Keys of one page of a snapshot; measured, pages of 100 to 5 000 take the same time per key."""
PAGE_BYTES: Final = 4 * 2**20
"""Bytes of a page, beyond which the server ends it after the present message."""
API_TIMEOUT: Final = 1.0


class Bucket(Struct, frozen=True, kw_only=True):
    """What a bucket must be like. Everything else about its stream is left as an administrator has set it."""

    name: str
    storage: str
    """`file` or `memory`."""
    replicas: int = 1
    ttl: float = 0.0
    """Seconds after which a key expires; 0: never."""
    republish: str = ""
    """Subject under which what was stored is published again; `>` stands for the key."""
    message_ttl: bool = False
    """Allow a write to bring its own time to live."""
    deletable: bool | None = False
    """Allow single messages to be deleted. None: allow it in a new bucket; in an existing one it can't be allowed any
    more."""
    max_bytes: int = 0
    """Of all messages, unless an administrator has set another limit; 0: no limit. The server reserves them."""

    @property
    def stream(self) -> str:
        return f"KV_{self.name}"

    def config(self) -> dict[str, Any]:
        """The stream's configuration."""
        subject = f"$KV.{self.name}.>"
        config: dict[str, Any] = {
            "name": self.stream,
            "subjects": [subject],
            "storage": self.storage,
            "num_replicas": self.replicas,
            "max_msgs_per_subject": 1,
            "discard": "new",
            "allow_direct": True,
            "allow_rollup_hdrs": True,
            "max_age": round(self.ttl * 1e9),
        }
        if self.deletable is not None:
            config["deny_delete"] = not self.deletable
        if self.republish:
            config["republish"] = {"src": subject, "dest": self.republish}
        if self.message_ttl:
            config["allow_msg_ttl"] = True
        if self.max_bytes:
            config["max_bytes"] = self.max_bytes
        return config


class Stored(NamedTuple):
    """A message of a stream."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    sequence: int
    """Of the stream: a key's revision."""


class _Error(Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class Extent(Struct, frozen=True):
    """What a stream holds, in numbers."""

    messages: int = 0
    last_sequence: int = msgspec.field(default=0, name="last_seq")
    """Of the last message that was ever written."""


class _Answer(Struct):
    error: _Error | None = None
    seq: int = 0
    config: dict[str, Any] = {}
    state: Extent = Extent()
    message: dict[str, Any] = {}


_answers = msgspec.json.Decoder(_Answer)


def _answer(message: Msg) -> _Answer:
    try:
        answer = _answers.decode(message.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BusError(f"JetStream's answer can't be read: {error}") from error
    if answer.error is not None:
        number = answer.error.err_code
        kind = WrongLastSequence if number == WRONG_LAST_SEQUENCE else NoRoom if number in NO_ROOM else JetStreamError
        raise kind(answer.error.code, number, answer.error.description)
    return answer


async def api(bus: Bus, operation: str, body: Mapping[str, Any], *, timeout: float = API_TIMEOUT) -> _Answer:
    """A request of JetStream's API, such as `STREAM.INFO.KV_endpoints`. Raises JetStreamError and as `Bus.request`."""
    return _answer(await bus.request(f"$JS.API.{operation}", msgspec.json.encode(body), timeout=timeout))


class Ensured(NamedTuple):
    """A bucket that is there."""

    changed: bool
    """It had to be created or adapted."""
    replicas: int


async def ensure_bucket(bus: Bus, bucket: Bucket, *, timeout: float = API_TIMEOUT) -> Ensured:
    """Create the bucket or adapt its configuration; for its owners only. More replicas than requested stay. Raises
    JetStreamError if it can't be adapted: delete a bucket with another kind of storage by hand."""
    wanted = bucket.config()
    try:
        found = (await api(bus, f"STREAM.INFO.{bucket.stream}", {}, timeout=timeout)).config
    except JetStreamError as error:
        if error.error_code != STREAM_NOT_FOUND:
            raise
        try:
            await api(bus, f"STREAM.CREATE.{bucket.stream}", wanted, timeout=timeout)
        except JetStreamError as race:
            if race.error_code != STREAM_DIFFERS:
                raise
        return Ensured(True, bucket.replicas)
    replicas = found.get("num_replicas", 1)
    wanted["num_replicas"] = max(bucket.replicas, replicas if isinstance(replicas, int) else 1)
    if isinstance(limit := found.get("max_bytes"), int) and limit > 0:
        wanted.pop("max_bytes", None)
    if all(_same(found.get(name), value) for name, value in wanted.items()):
        return Ensured(False, wanted["num_replicas"])
    if wanted["max_age"]:
        found.pop("duplicate_window", None)  # it may not be longer than the age: the server knows what it can be
    await api(bus, f"STREAM.UPDATE.{bucket.stream}", found | wanted, timeout=timeout)
    return Ensured(True, wanted["num_replicas"])


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(found.get(name) == value for name, value in wanted.items())
    return bool(found == wanted) or (not wanted and not found)


async def extent(bus: Bus, bucket: str, *, timeout: float = API_TIMEOUT) -> Extent:
    """What a bucket holds, in numbers. Raises JetStreamError and as `Bus.request`."""
    return (await api(bus, f"STREAM.INFO.KV_{bucket}", {}, timeout=timeout)).state


async def put(
    bus: Bus, subject: str, payload: bytes, *, headers: Mapping[str, str] | None = None, timeout: float
) -> int:
    """Write a message, wait until the stream has it, and return its sequence. Raises WrongLastSequence, JetStreamError
    and as `Bus.request`. After RequestTimeout it may have been written: a missing stream doesn't answer either if
    anyone subscribes to the subject."""
    return _answer(await bus.request(subject, payload, headers=headers, timeout=timeout)).seq


async def last(bus: Bus, bucket: str, subject: str, *, timeout: float = API_TIMEOUT) -> Stored | None:
    """The last message of a subject according to the stream's leader; None if there is none. Raises as `api`."""
    try:
        answer = await api(bus, f"STREAM.MSG.GET.KV_{bucket}", {"last_by_subj": subject}, timeout=timeout)
    except JetStreamError as error:
        if error.error_code == NO_MESSAGE:
            return None
        raise
    found = answer.message
    try:
        lines = b64decode(found.get("hdrs", ""))
        return Stored(
            found["subject"],
            b64decode(found.get("data", "")),
            NatsClient._parse_header_lines(lines.partition(b"\r\n")[2]),
            int(found["seq"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BusError(f"JetStream's answer can't be read: {type(error).__name__}: {error}") from error


async def snapshot(
    bus: Bus,
    bucket: str,
    subjects: str,
    *,
    read: Callable[[Stored], Any] = lambda stored: stored,
    between: Callable[[], Awaitable[object]] | None = None,
    page: int = PAGE,
    timeout: float = API_TIMEOUT,
) -> list[Any]:
    """Call `read` with the last message of every subject that matches `subjects`, in the stream's order, and return the
    results. Messages come in pages by batched direct gets, so that only one page is held at a time. `between` is
    awaited after each page.

    Any replica may answer, also one that is behind. `timeout` is for a page. An empty bucket gives an empty list.
    Raises NoResponders for a missing bucket, JetStreamError and as `Bus.request`.
    """
    found = []
    sequence = 1
    while True:
        body = msgspec.json.encode({"seq": sequence, "batch": page, "max_bytes": PAGE_BYTES, "next_by_subj": subjects})
        answers = await _page(bus, f"$JS.API.DIRECT.GET.KV_{bucket}", body, page, timeout)
        end = answers.pop()
        whole = [stored for message in answers if (stored := _stored(message, bucket)) is not None]
        began = time.monotonic()
        for stored in whole:
            found.append(read(stored))
            if time.monotonic() - began >= TURN:
                await asyncio.sleep(0)
                began = time.monotonic()
        if between is not None:
            await between()
        code, headers = status(end), end.headers or {}
        if code == "404":
            return found
        if code != "204":
            description = headers.get("Description", "no description" if code else "more than was asked for")
            raise JetStreamError(_number(code), 0, f"direct get of {subjects}: {description}")
        if not answers or not _number(headers.get(PENDING)):
            return found
        after = _number(headers.get(BEFORE)) or (whole[-1].sequence if whole else 0)
        if after < sequence:
            raise BusError(f"direct get of {subjects}: the pages have no order")
        sequence = after + 1


async def _page(bus: Bus, subject: str, body: bytes, limit: int, timeout: float) -> list[Msg]:
    """The messages of a batch, and the one that ends it: one with a status, or one too many."""
    answers: list[Msg] = []
    room = PAGE_BYTES + bus.max_payload

    def is_last(answer: Msg) -> bool:
        nonlocal room
        room -= len(answer.data)
        answers.append(answer)
        return status(answer) is not None or len(answers) > limit or room < 0

    await bus.request_many(subject, body, last=is_last, timeout=timeout)
    return answers


def _stored(message: Msg, bucket: str) -> Stored | None:
    """A message of a batch; None for one that doesn't say what it is, or is of another bucket: no reader could use
    it."""
    headers: Mapping[str, str] = message.headers or {}
    sequence, subject = _number(headers.get(SEQUENCE)), headers.get(SUBJECT, "")
    if not sequence or not subject.startswith(f"$KV.{bucket}."):
        return None
    return Stored(subject, message.data, headers, sequence)


def is_republished(message: Msg, bucket: str, subject: str) -> bool:
    """Whether the server published this message because a bucket had stored it under that subject. Somebody may have an
    answer sent to where the bucket's messages appear; direct gets have other headers."""
    headers: Mapping[str, str] = message.headers or {}
    stored = headers.get(STREAM) == f"KV_{bucket}" and headers.get(SUBJECT) == subject
    return stored and BEFORE in headers and PENDING not in headers


def _number(text: str | None) -> int:
    """A header's whole number; 0 where it has none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 20 else 0


async def remove(bus: Bus, bucket: str, sequence: int, *, timeout: float = API_TIMEOUT) -> bool:
    """Delete one message of a bucket whose messages are deletable; returns whether it was still there. Needs no room.
    Raises as `api`."""
    try:
        await api(bus, f"STREAM.MSG.DELETE.KV_{bucket}", {"seq": sequence, "no_erase": True}, timeout=timeout)
    except JetStreamError as error:
        if error.error_code in (SEQUENCE_NOT_FOUND, NO_MESSAGE):
            return False
        raise
    return True


async def purge(bus: Bus, bucket: str, subject: str, *, before: int, timeout: float = API_TIMEOUT) -> None:
    """Remove a subject's messages below a sequence: needs no room, isn't fenced, doesn't notify readers. Raises as
    `api`."""
    await api(bus, f"STREAM.PURGE.KV_{bucket}", {"filter": subject, "seq": before}, timeout=timeout)
