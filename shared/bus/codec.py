"""Encodes and decodes messages. One that can't be decoded is `Malformed`: counted, logged once a minute per sender,
skipped.

A fact's encoding is deterministic: owners and readers compare digests.
"""

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import msgspec
import structlog
from xxhash import xxh3_64_intdigest

from shared.attributes import entries, extent, oversized
from shared.bus.errors import Malformed
from shared.bus.messages import (
    MAX_FRAME_ATTRIBUTES,
    MAX_FRAME_ENDPOINTS,
    MAX_FRAME_PLACES,
    MAX_FRAME_VALUES,
    Candidate,
    Frame,
    Load,
    Member,
    Message,
    PrefixBatch,
    PrefixPiece,
    PrefixRequest,
    Synced,
)
from shared.bus.query_messages import Query
from shared.limits import LIMITS
from shared.model import Endpoint, Fact, unusable_address

M = TypeVar("M", bound=Message)

_Checked = Frame | Load | Synced | PrefixBatch | PrefixRequest | PrefixPiece | Member | Candidate | Query
_encoder = msgspec.msgpack.Encoder()
_fact_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoders = {kind: msgspec.msgpack.Decoder(kind) for kind in get_args(Message)}
_fact_decoder: msgspec.msgpack.Decoder[Fact] = msgspec.msgpack.Decoder(Fact)

UNKNOWN_SENDER = "unknown"
"""Stands for the unknown sender of a message."""
SHOWN = 256
"""Characters of a sender's name, and of what is wrong with a message, that are kept."""
_EMPTY = msgspec.Raw(b"\x90")
INTERVAL = 60.0
"""Seconds between two lines in the log about one sender."""
MASK = 0xFFFF_FFFF_FFFF_FFFF
"""Digests are sums modulo 2^64."""
BATCHES_MASK = MASK >> 1
"""Those of batches are sums modulo 2^63."""


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


class _Shape(msgspec.Struct, tag="frame/1"):
    """A frame, unread: reading a message of a million lists takes half a second. The frame is made of this, and not of
    the message, which may have a field or a name twice."""

    sender: str
    sent: float
    sequence: int
    ids: msgspec.Raw
    run: int = 0
    columns: msgspec.Raw = msgspec.Raw(b"\x80")
    ages: msgspec.Raw = msgspec.Raw(b"\x80")
    objects: msgspec.Raw = msgspec.Raw(b"\x80")
    absent: msgspec.Raw = msgspec.Raw(b"\x80")

    def read(self) -> Frame:
        """Raises Malformed if there is more of anything than in a frame."""
        if (rows := entries(bytes(self.ids))) > MAX_FRAME_ENDPOINTS:
            raise _no_frame(f"{rows} endpoints in a frame, at most {MAX_FRAME_ENDPOINTS} are allowed")
        for raw in (self.columns, self.ages, self.objects, self.absent):
            if (names := entries(bytes(raw))) > MAX_FRAME_ATTRIBUTES:
                raise _no_frame(f"{names} attributes in a frame, at most {MAX_FRAME_ATTRIBUTES} are allowed")
        return Frame(
            sender=self.sender,
            sent=self.sent,
            sequence=self.sequence,
            run=self.run,
            ids=_ids.decode(self.ids),
            columns=_columns.decode(self.columns),
            ages=_columns.decode(self.ages),
            objects=self._read_objects(),
            absent=self._read_absent(),
        )

    def _read_objects(self) -> dict[str, list[Any]]:
        large, total, places = len(bytes(self.objects)) > MAX_FRAME_VALUES, 0, 0
        found: dict[str, list[Any]] = {}
        for name, values in _lists.decode(self.objects).items():
            places += (count := entries(bytes(values)))
            if count > MAX_FRAME_ENDPOINTS:
                raise _no_frame(f"objects {name!r} has {count} values")
            if places > MAX_FRAME_PLACES:
                raise _no_frame(f"objects has {places} places, at most {MAX_FRAME_PLACES} are allowed")
            for value in map(bytes, _values.decode(values)):
                if value == _NONE:
                    continue
                if reason := oversized(value):
                    raise _no_frame(f"objects {name!r} has a value of {reason}")
                if large and (total := total + extent(value)) > MAX_FRAME_VALUES:
                    raise _no_frame(f"objects of more than {MAX_FRAME_VALUES} names, or bytes of other values")
            found[name] = _objects.decode(values)
        return found

    def _read_absent(self) -> dict[str, list[int]]:
        lists, total = _lists.decode(self.absent), 0
        for name, positions in lists.items():
            total += (count := entries(bytes(positions)))
            if count > MAX_FRAME_ENDPOINTS:
                raise _no_frame(f"absent {name!r} has {count} positions")
        if total > MAX_FRAME_PLACES:
            raise _no_frame(f"absent has {total} positions, at most {MAX_FRAME_PLACES} are allowed")
        return {name: _positions.decode(positions) for name, positions in lists.items()}


def _no_frame(fault: str) -> Malformed:
    return Malformed(f"no Frame: {fault}")


_NONE = msgspec.msgpack.encode(None)
_shapes = msgspec.msgpack.Decoder(_Shape)
_lists = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_values = msgspec.msgpack.Decoder(list[msgspec.Raw])
_ids = msgspec.msgpack.Decoder(tuple[str, ...])
_columns = msgspec.msgpack.Decoder(dict[str, bytes])
_objects = msgspec.msgpack.Decoder(list[Any])
_positions = msgspec.msgpack.Decoder(list[int])


def decode(kind: type[M], data: bytes) -> M:
    """Decode a message of that kind. Raises Malformed: not MessagePack, another or an unknown tag, a missing field, or
    one of a wrong type or length."""
    try:
        message: Any = _shapes.decode(data).read() if kind is Frame else _decoders[kind].decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Malformed(f"no {kind.__name__}: {error}") from error
    if isinstance(message, _Checked):
        fault = message.fault()
        if fault is not None:
            raise Malformed(f"no {kind.__name__}: {fault}")
    read: M = message
    return read


def encode_fact(fact: Fact) -> bytes:
    """The fact alone, as it stands in an envelope."""
    return _fact_encoder.encode(fact)


class _RuleShape(msgspec.Struct):
    """A rewrite's rule, unread."""

    models: msgspec.Raw = _EMPTY
    targets: msgspec.Raw = _EMPTY


class _FactShape(msgspec.Struct):
    """A fact, unread: reading one of a hundred thousand rules takes a fifth of a second, with what is made of them."""

    labels: msgspec.Raw = _EMPTY
    selector: msgspec.Raw = _EMPTY
    target_ports: msgspec.Raw = _EMPTY
    targets: msgspec.Raw = _EMPTY
    rules: msgspec.Raw = _EMPTY

    def entries(self, limit: int) -> int:
        """As `shared.model.entries_of` counts them, exactly if there are at most `limit`."""
        lists = [self.labels, self.selector, self.target_ports, self.targets, self.rules]
        found = sum(entries(bytes(raw)) for raw in lists)
        if found <= limit and self.rules != _EMPTY:
            rules = _rule_shapes.decode(self.rules)
            found += sum(entries(bytes(rule.models)) + entries(bytes(rule.targets)) for rule in rules)
        return found


_fact_shapes = msgspec.msgpack.Decoder(_FactShape)
_rule_shapes = msgspec.msgpack.Decoder(list[_RuleShape])


def decode_fact(raw: bytes | msgspec.Raw, limit: int = LIMITS.max_fact_entries) -> Fact:
    """Raises Malformed, also for a kind of fact that this version doesn't know, and for more than `limit` entries."""
    try:
        if len(bytes(raw)) > limit and (count := _fact_shapes.decode(raw).entries(limit)) > limit:
            raise Malformed(f"no fact: {count} entries; {limit} are allowed")
        fact = _fact_decoder.decode(raw)
        if isinstance(fact, Endpoint) and (reason := unusable_address(fact)):
            raise Malformed(f"no endpoint: {reason}")
        return fact
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Malformed(f"no fact: {error}") from error


def fact_digest(key: str, raw: bytes | msgspec.Raw) -> int:
    """What one fact adds to its pool's digest; `raw` is the encoded fact without epoch and sequence."""
    return xxh3_64_intdigest(bytes(raw), xxh3_64_intdigest(key.encode()))


def load_digest(load: Load) -> int:
    """The digest of a table of load in flight."""
    return xxh3_64_intdigest(load.tokens, xxh3_64_intdigest(load.requests, xxh3_64_intdigest(load.ids)))


def batch_digest(batch: PrefixBatch) -> int:
    """What a batch of prefix placements adds to the digest of its run."""
    digest = batch.sequence
    for column in (batch.servers, batch.withdrawn, batch.counts, batch.blocks):
        digest = xxh3_64_intdigest(column, digest)
    return digest


class SenderLog:
    """Counts faulty messages, and logs one line per sender and minute with their number. `what` is the fault in a word.

    Beyond `max_senders`, senders that may log again are forgotten; if all are recent, further ones share an entry.
    """

    OTHERS = "(others)"

    def __init__(self, clock: Callable[[], float], what: str, *, max_senders: int = 1000) -> None:
        self._clock = clock
        self._what = what
        self._max_senders = max_senders
        self._next: dict[str, float] = {}
        self._unlogged: dict[str, int] = {}
        self._last: tuple[float, str, str] | None = None
        """When the last one came, from whom, and what is wrong with it."""
        self._log = structlog.get_logger()
        self.total = 0

    def report(self, sender: str, error: Exception | str, *, subject: str = "") -> bool:
        """Count a message; returns whether it was logged too. `sender` is who sent it, as far as known: of facts the
        pool and, if readable, the epoch of the watcher."""
        self.total += 1
        now = self._clock()
        sender, reason = sender[:SHOWN], str(error)[:SHOWN]
        self._last = now, sender, reason
        if sender not in self._next and len(self._next) >= self._max_senders:
            self._forget(now)
            if len(self._next) >= self._max_senders:
                sender = self.OTHERS
        skipped = self._unlogged.get(sender, 0)
        if now < self._next.get(sender, now):
            self._unlogged[sender] = skipped + 1
            return False
        self._next[sender] = now + INTERVAL
        self._unlogged[sender] = 0
        self._log.warning(
            f"bus.message.{self._what}", sender=sender, subject=subject, reason=reason, since_last_line=skipped + 1
        )
        return True

    def note(self) -> str | None:
        """What `/readyz` mentions: the last one, when it came within the last minute."""
        if self._last is None or self._clock() - self._last[0] >= INTERVAL:
            return None
        at, sender, reason = self._last
        return f"{self.total} {self._what} messages, the last {self._clock() - at:.0f} s ago from {sender!r}: {reason}"

    def _forget(self, now: float) -> None:
        for sender in [sender for sender, due in self._next.items() if due <= now and sender != self.OTHERS]:
            del self._next[sender], self._unlogged[sender]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._what} total={self.total} senders={len(self._next)}>"


class MalformedLog(SenderLog):
    """Messages that can't be read. Counts separately: implausible messages, messages under the id of another process,
    and messages of this process for which its login has no permission."""

    def __init__(self, clock: Callable[[], float], *, max_senders: int = 1000) -> None:
        super().__init__(clock, "malformed", max_senders=max_senders)
        self.implausible = SenderLog(clock, "implausible", max_senders=max_senders)
        self.conflicting = SenderLog(clock, "conflicting", max_senders=max_senders)
        self.refused = SenderLog(clock, "refused", max_senders=max_senders)

    def decode(self, kind: type[M], data: bytes, subject: str, sender: str = UNKNOWN_SENDER) -> M | None:
        """The message; None, after it was counted, if it can't be read."""
        try:
            return decode(kind, data)
        except Malformed as error:
            self.report(sender, error, subject=subject)
            return None

    def note(self) -> str | None:
        notes = (super().note(), self.implausible.note(), self.conflicting.note(), self.refused.note())
        return "; ".join(filter(None, notes)) or None
