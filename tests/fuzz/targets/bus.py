"""What must hold of messages of the bus: each is sound or counted as malformed, and whatever the sound ones say, the
picker that hears them decides, can be scraped, and forgets a peer that falls silent.

An input is a sequence of messages, with lines of two dashes between them. One is a line that says what it is (`frame`,
`load`, `prefix`, `piece`, `request`, `member`, `synced`, `epoch`, `candidate`, `holder`, `query`, `answer`, `action`,
`done`; `fact` and its key; `delete`, its key, epoch and sequence), and MessagePack; where JSON stands in its place, its
MessagePack is meant, in which an object with the one key `<f8`, `<f4`, `<u8` or `<u4` is a packed column.
"""

import json
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from services.picker.flow_control.peers import Peers
from services.picker.state.inflight import EXPIRY
from services.picker.state.lru_prefix_index import UNKNOWN_SWEEPS
from services.picker.state.prefix import DEFAULT_CAPACITY
from services.picker.state.prefix_peers import FORGOTTEN, PrefixPeers, Restore
from services.picker.state.view import View
from shared.attributes import STANDARD_KEYS, bounds_of
from shared.bus.action_messages import ActionResult, Drain
from shared.bus.candidacy import Candidates
from shared.bus.codec import decode, encode, encode_fact, fact_digest
from shared.bus.connection import Bus
from shared.bus.errors import Malformed
from shared.bus.facts import EPOCH_HEADER, SEQUENCE_HEADER, Delete, Event, Reset, Upsert, parse_entry
from shared.bus.frame_reader import FrameReader
from shared.bus.incarnations import Incarnations
from shared.bus.membership import Members
from shared.bus.messages import (
    Candidate,
    Epoch,
    FactEnvelope,
    Frame,
    Holder,
    Load,
    Member,
    PrefixBatch,
    PrefixPiece,
    PrefixRequest,
    Synced,
)
from shared.bus.query_client import AnswerPieces
from shared.bus.query_messages import Query
from shared.bus.replica_state import ReplicaState
from shared.bus.subjects import Subjects, fact_key
from shared.bus.subscription import Handler, Subscription
from shared.model import Configuration, Fact
from shared.pool_view.view import COLLECTOR, WATCHER, PoolView
from tests.fuzz import sequences
from tests.unit.services.picker.extproc.proxy import LEAN, body, headers
from tests.unit.services.picker.handler import PickerUnderTest
from tests.unit.services.picker.world import endpoint

POOL = "default_pool"
PACKED = ("<f8", "<f4", "<u8", "<u4")
CHAT = [(":method", "POST"), (":path", "/v1/chat/completions")]
ASKED = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 400}]}).encode()
MAX_CANDIDATES = 3
STEP = 0.3
"""Seconds between two messages."""
NEVER_SAID = "pointsman_picker_attribute_age_seconds"
"""What has no end while nothing was said of an endpoint."""
DOCUMENT = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: prefix-cache-scorer
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: lora-affinity-scorer
- type: token-load-scorer
- type: active-request-scorer
- type: running-requests-size-scorer
- type: max-score-picker
"""


class Listened(Bus):
    """A bus without a connection, which keeps who subscribes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__("nats://127.0.0.1:1", name="fuzz", clock=clock)
        self.hear: Callable[[Any], None] = lambda message: None

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        self.hear = handler
        return await super().subscribe(subject, handler)


class Listener:
    """A picker's view of three endpoints, and all who read what it hears."""

    def __init__(self) -> None:
        self.picker = PickerUnderTest(View(), DOCUMENT)
        self.view = self.picker.view
        self.replica = ReplicaState(self._on_event)
        self.members = Members()
        self.candidates = Candidates(limit=MAX_CANDIDATES)
        self.queues = Peers()
        self.answers = AnswerPieces()
        self.prefixes = PrefixPeers(self.view.prefixes)
        self.observed = PoolView(EXPIRY)
        self.observed.connected(self.picker.now)
        self._bus = Listened(lambda: self.picker.now)
        self.malformed = self._bus.malformed
        self.senders = Incarnations(self.malformed.conflicting)
        self._frames = FrameReader(self._bus, Subjects(), POOL, self._on_frame, clock=lambda: self.picker.now)
        _run(self._frames.start())
        self._taken = 0
        facts = [endpoint(id) for id in ("a1", "a2", "a3")]
        written = [(fact_key(POOL, fact), encode_fact(fact)) for fact in facts]
        digest = sum(fact_digest(key, raw) for key, raw in written) % 2**64
        self._stored = [
            parse_entry(key, encode(FactEnvelope(epoch=1, sequence=number, fact=msgspec.Raw(raw))), {})
            for number, (key, raw) in enumerate(written)
        ]
        self._stored.append(Synced(epoch=1, sequence=3, count=len(facts), digest=digest))
        self.replica.connected(self.picker.now)
        self._snapshot()
        assert [endpoint.id for endpoint in self.view.layout.endpoints] == ["a1", "a2", "a3"]

    def hear(self, kind: str, key: str, order: list[str], data: bytes) -> None:
        """One message: taken in, or counted as malformed."""
        self.picker.now += STEP
        before = self._counted + self._taken
        if kind == "frame":
            self._bus.hear(SimpleNamespace(subject=Subjects().frame(POOL, "c", 0), data=data, headers=None))
            assert self._counted + self._taken == before + 1
            return
        try:
            self._take(kind, key, order, data)
        except Malformed as error:
            self.malformed.report("x", error)
        due = self.replica.snapshot_due()
        if due is not None and due <= self.picker.now:
            self._snapshot()

    @property
    def _counted(self) -> int:
        return self.malformed.total + self.malformed.implausible.total + self.malformed.conflicting.total

    def _take(self, kind: str, key: str, order: list[str], data: bytes) -> None:
        now = self.picker.now
        match kind:
            case "load":
                row = decode(Load, data)
                subject = Subjects().load(POOL, row.sender)
                taken = self.senders.accepts(subject, row.sender, row.run, now, leaving=row.leaving)
                if not taken:
                    return
                plausible = self.view.apply_load(row, now)
                assert self.observed.load(row, now) is plausible
                if plausible and row.queue is not None:
                    self.queues.apply(row.sender, row.run, row.sent, row.queue, now)
            case "prefix":
                self.prefixes.receive(decode(PrefixBatch, data), now)
                self.prefixes.missing(now)
                self.prefixes.different(now)
            case "piece":
                piece = decode(PrefixPiece, data)
                for batch in piece.batches:
                    self.prefixes.receive(decode(PrefixBatch, batch), now)
                restore = Restore(self.prefixes, self.view.prefixes, "p1", now, None)
                restore.take(piece)
                restore.finish(piece.sequence)
            case "candidate":
                candidate = decode(Candidate, data)
                self.candidates.observe(candidate, now)
                self.observed.observe(WATCHER, candidate.owner, now, leaving=candidate.leaving)
                assert len(self.candidates) <= MAX_CANDIDATES
            case "request":
                decode(PrefixRequest, data)
            case "query":
                decode(Query, data)
            case "action":
                decode(Drain, data)
            case "done":
                decode(ActionResult, data)
            case "answer":
                self.answers.take(data)
            case "member":
                member = decode(Member, data)
                self.members.observe(member, now)
                self.observed.observe(COLLECTOR, member.id, now, leaving=member.leaving)
                assert (member.id in self.members) is not member.leaving
            case "synced" | "fact" | "delete":
                key = f"{POOL}.synced" if kind == "synced" else key
                if not key.startswith(f"{POOL}."):
                    return  # a reader subscribes to its pool's alone
                operation = {"KV-Operation": "DEL", **dict(zip((EPOCH_HEADER, SEQUENCE_HEADER), order, strict=False))}
                entry = parse_entry(key, data, operation if kind == "delete" else {})
                self._stored.append(entry)
                self.replica.receive(entry, now)
            case "holder":
                self.observed.leader(decode(Holder, data).owner)
            case _:
                decode(Epoch, data)

    def _snapshot(self) -> None:
        self.replica.snapshot_started(self.picker.now)
        for entry in self._stored:
            self.replica.snapshot_entry(entry, self.picker.now)
        self.replica.snapshot_read(self.picker.now)

    def _on_frame(self, frame: Frame, extra: float) -> None:
        assert extra >= 0, extra
        self._taken += 1
        self.view.apply_frame(frame, self.picker.now, extra)
        self.observed.frame(frame, self.picker.now, extra)

    def _on_event(self, event: Event) -> None:
        """As `ViewUpdates` does; a configuration is another target's."""
        self.observed.event(event)
        match event:
            case Reset(facts=facts):
                self.view.reset(facts)
                assert self.replica.facts() == facts
            case Upsert(fact=Configuration()):
                pass
            case Upsert(key=key, fact=fact):
                _check_fact(key, fact)
                self.view.upsert(key, fact)
            case Delete(key=key):
                self.view.delete(key)

    def _check_observed(self) -> None:
        """An observer sees the same endpoints with the same load, and finite numbers."""
        now, observed = self.picker.now, self.observed
        rows = list(observed.rows(now))
        assert {row.id for row in rows} == self.view.endpoints.keys()
        for row in rows:
            assert row.in_flight >= 0
            assert row.age is None or math.isfinite(row.age)
            assert all(math.isfinite(known.age) for known in observed.attributes(row.id, now).values())
        assert len(
            json.dumps(msgspec.to_builtins([rows, observed.members(now), list(observed.queues(now))]), allow_nan=False)
        )

    def check(self) -> None:
        """What must be possible, whatever was heard."""
        stream, answers = self.picker.begin(headers(CHAT, modes=LEAN), body(ASKED, end=True))
        assert answers[-1].status or answers[0].set_headers or answers[-1].set_headers
        (decision,) = self.picker.ring.newest(1)
        json.dumps([decision.explain(), decision.summary()], allow_nan=False)
        stream.end()
        assert self.picker.load == {}
        self._check_observed()
        generate_latest(self.picker.registry)
        for family in self.picker.registry.collect():
            for sample in family.samples:
                assert math.isfinite(sample.value) or (sample.value, sample.name) == (math.inf, NEVER_SAID), sample
        msgspec.json.encode(list(self.view.state(self.picker.now)))
        for key in STANDARD_KEYS:
            if key.kind is float:
                values = self.view.columns.numbers(key.wire).values
                assert all(value in bounds_of(key.wire) for value in values if not math.isnan(value)), values
        in_flight = self.view.in_flight
        for counts in (in_flight.requests, in_flight.tokens):
            assert np.isfinite(counts).all(), counts
            assert (counts >= 0).all(), counts
        for server in self.view.prefixes.servers():
            assert len(self.view.prefixes.states(server)[0]) <= DEFAULT_CAPACITY
        self.prefixes.expire(self.picker.now + 2 * FORGOTTEN)
        assert not self.prefixes.listening(self.picker.now)
        for _ in range(2 * UNKNOWN_SWEEPS):
            self.view.prefixes.sweep()
        self.members.resume(self.picker.now)
        self.members.expire(self.picker.now + 1e6)
        assert self.members.ids == ()
        assert all(count > 0 for count in self.queues.waiting.values())
        self.queues.expire(self.picker.now + 2 * EXPIRY)
        assert (len(self.queues), self.queues.waiting) == (0, {})
        assert self.candidates.better((), self.picker.now + 1e6) is None
        in_flight.expire(self.picker.now + 2 * EXPIRY)
        assert not list(in_flight.peers())
        assert not in_flight.requests.any()
        assert not in_flight.tokens.any()


def check(data: bytes) -> None:
    """Raises AssertionError, or what a reader let out, for an input that shows a fault."""
    with capture_logs():
        listener = Listener()
        for part in sequences.parts(data):
            line, _, text = part.partition(b"\n")
            kind, key, *order = [*line.decode("utf-8", "replace").split(" "), ""]
            listener.hear(kind, key, order, _message(text))
        listener.check()


def _check_fact(key: str, fact: Fact) -> None:
    assert msgspec.msgpack.decode(encode_fact(fact), type=type(fact)) == fact, key


def _message(text: bytes) -> bytes:
    """The bytes that an input's text stands for."""
    try:
        return msgspec.msgpack.encode(_packed(sequences.value(text)))
    except (ValueError, OverflowError, RecursionError, TypeError, msgspec.MsgspecError):
        return text


def _packed(value: Any) -> Any:
    if isinstance(value, dict):
        for kind in PACKED:
            if value.keys() == {kind}:
                with np.errstate(all="ignore"):
                    return np.asarray(value[kind], kind).tobytes()
        return {name: _packed(item) for name, item in value.items()}
    return [_packed(item) for item in value] if isinstance(value, list) else value


def _run(starting: Any) -> None:
    """Drive a coroutine that waits for nothing."""
    try:
        starting.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")
