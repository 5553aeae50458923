"""Shares prefix placements with the other pickers: announces this picker's, and takes in theirs.

A starting picker asks for its peers. If one has all placements, it takes a dump from it. If none answers, it is the
first.
"""

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from services.picker.admin.prefix_metrics import PrefixMetrics
from services.picker.bus.pace import Pace
from services.picker.bus.prefix_answers import PrefixAnswers
from services.picker.pipeline import Pipeline
from services.picker.scheduling.producers.approx_prefix import ApproxPrefixProducer
from services.picker.settings.limits import Sharing
from services.picker.state.lru_prefix_index import Change
from services.picker.state.prefix import HASHING
from services.picker.state.prefix_announcements import Announcements, parts
from services.picker.state.prefix_peers import LISTENING, Origin, PrefixPeers, Restore
from services.picker.state.view import View
from shared.bus import Msg
from shared.bus.codec import SHOWN, SenderLog, decode, encode
from shared.bus.connection import Bus
from shared.bus.errors import BusError, Malformed, NoResponders, RequestTimeout
from shared.bus.heartbeat import INTERVAL
from shared.bus.incarnations import Incarnations
from shared.bus.messages import PrefixBatch, PrefixPiece, PrefixRequest
from shared.bus.subjects import Subjects
from shared.service.readiness import Readiness

log = structlog.get_logger(__name__)

ANSWERS = 0.25
"""Seconds in which pickers answer that they exist."""
PIECE = 1.0
"""Seconds that a picker may take for a piece of a dump."""
LOOK = 0.05
"""Seconds between two looks whether there is a view."""
NO_BATCH = 2**63 - 1
"""The number of no batch: what follows it can't be repeated, so the answer is a dump."""
BUSY = (0.1, 0.5)
"""Seconds, between these, after which a request to a busy picker is repeated."""
MAX_ASKED = 16
"""Pickers that are asked for all placements: one that invents ids may name a new one each time."""
MAX_SECONDS = 120.0
"""Seconds that a dump may take, or the batches that are missing, with the time in which the other picker is busy."""


class PrefixSharing:
    """One picker's part. Nothing is shared until `use` or `configure` says what the hashes depend on."""

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        pool: str,
        id: str,
        view: View,
        options: Sharing,
        synced: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        *,
        on_own_id: Callable[[], None] = lambda: None,
    ) -> None:
        """`synced` says whether the endpoints are known. `on_own_id` is called when another process has this id."""
        self._bus, self._subjects, self._pool, self._id = bus, subjects, pool, id
        self._view, self._index, self._synced = view, view.prefixes, synced
        self._options, self._clock = options, clock
        self.pace = Pace(options.interval)
        self.hashing = ""
        """What the hashes depend on; empty if nothing is shared."""
        self.mine = Announcements(id, secrets.randbits(63))
        self._subject = subjects.prefix_batch(pool, id)
        self.peers = PrefixPeers(view.prefixes)
        self._on_own_id = on_own_id
        self._incarnations = Incarnations(bus.malformed.conflicting, bus.limits.max_senders)
        self.incompatible = SenderLog(clock, "incompatible")
        """Batches of pickers that hash prompts in another way."""
        self.problem = ""
        """Why peers don't receive the placements; empty if they may."""
        self._answers = PrefixAnswers(
            bus, subjects, subjects.prefix_peers(pool), self._index, self.peers, self.mine, self._batch, clock
        )
        self._published_at = float("-inf")
        self._began: float | None = None
        """When this picker began to request the others' placements."""
        self._was_ready = False

    def configure(self, hashing: str, capacity_of: Callable[[int], int]) -> None:
        """What hashes of blocks depend on, apart from `HASHING`, empty if there are none; and how many blocks the
        endpoint in a row holds."""
        self.hashing = f"{HASHING}: {hashing}" if hashing else ""
        self._index.capacity_of = capacity_of
        if not hashing:
            self._index.changes = None
        elif self._index.changes is None:
            self._index.changes = []

    def use(self, pipeline: Pipeline) -> None:
        """Use the hashes of the first producer that makes any."""
        producers = pipeline.director.scheduler.producers
        maker = next((producer for producer in producers if isinstance(producer, ApproxPrefixProducer)), None)
        if maker is not None and self._options.enabled:
            self.configure(maker.hashing, partial(maker.capacity, self._view))
        else:
            self.configure("", self._index.capacity_of)

    def register(self, registry: CollectorRegistry, readiness: Readiness) -> None:
        """Metrics, and what `/readyz` says."""
        registry.register(PrefixMetrics(self.peers, self.incompatible, self._clock))
        readiness.require("prefixes", self.readiness)
        readiness.mention("prefixes", self.note)

    def tasks(self) -> tuple[tuple[Coroutine[Any, Any, None], str], ...]:
        """What runs once the bus has been started, by name."""
        return (
            (self.run(), "prefixes"),
            (self.join(), "prefixes of others"),
            (self._answers.run(), "prefixes for others"),
        )

    async def start(self) -> None:
        """Listen; what comes is held until `join` has ended."""
        await self._bus.subscribe(self._subjects.prefix_batches(self._pool), self._on_batch)
        for subject in (self._subjects.prefix_dump(self._pool, self._id), self._subjects.prefix_peers(self._pool)):
            await self._bus.subscribe(subject, self._on_request)

    def readiness(self) -> str | None:
        """None once this picker has the others' placements, or has waited long enough; otherwise the reason."""
        waited = 0.0 if self._began is None else self._clock() - self._began
        if self._was_ready or not self.hashing or not self.peers.joining or waited >= self._options.wait:
            self._was_ready = True
            return None
        return f"waiting for the prefix placements of other pickers for {waited:.1f} s"

    def note(self) -> str | None:
        """Notes for `/readyz`."""
        return "; ".join(filter(None, (self.problem, self.incompatible.note()))) or None

    def state(self) -> dict[str, object]:
        """For `/debug/state`."""
        return {"hashing": self.hashing, "batch": self.mine.sequence, **self.peers.state()}

    # Announcing

    async def run(self) -> None:
        """Announce and catch up until cancelled."""
        async with asyncio.TaskGroup() as catching_up:
            while True:
                await self.pace.turn(self._clock())
                now = self._clock()
                if self.hashing:
                    await self._announce(now)
                    for origin in self.peers.missing(now):
                        catching_up.create_task(self._alone(self._catch_up, origin))
                    for origin in self.peers.different(now):
                        log.warning("prefixes.differ", peer=origin.id, batch=origin.applied)
                        catching_up.create_task(self._alone(self._restore_own, origin))

    async def _announce(self, now: float) -> None:
        changes = self._index.changes
        if changes:
            self._index.changes = []
            if now - self._answers.asked_at >= LISTENING and not self.peers.listening(now):
                self.mine.skip()
            else:
                for part in parts(changes):
                    payload = encode(self._batch(part))
                    self.mine.sent(payload)
                    await self._publish(payload)
                self.pace.sent(now)
        if now - self._published_at >= INTERVAL:
            self.peers.expire(now)
            await self._publish(encode(self._batch()))

    def _batch(self, changes: list[Change] | None = None) -> PrefixBatch:
        return self.mine.batch(self.hashing, complete=not self.peers.joining, changes=changes or ())

    async def _publish(self, payload: bytes) -> None:
        self._published_at = self._clock()
        problem = ""
        try:
            await self._bus.publish(self._subject, payload)
        except BusError as error:  # it is larger than NATS takes
            problem = f"other pickers don't receive this picker's prefix placements: {error}"
        if problem and not self.problem:
            log.error("prefixes.unpublished", reason=problem)
        self.problem = problem

    # Hearing

    def _on_batch(self, message: Msg) -> None:
        if not self.hashing:
            return
        subject = message.subject
        batch = self._bus.malformed.decode(PrefixBatch, message.data, subject, self._subjects.sender(subject))
        if batch is None:
            return
        now = self._clock()
        if batch.sender == self._id:
            self._on_own_id()
        elif self._incarnations.accepts(message.subject, batch.sender, batch.run, now) and self._is_compatible(batch):
            _ = self._view.layout  # changed endpoints first
            self.peers.receive(batch, now)

    def peer_left(self, id: str) -> None:
        """Its next batches are of another run."""
        self._incarnations.forget(id)

    def _is_compatible(self, batch: PrefixBatch) -> bool:
        if batch.hashing == self.hashing:
            return True
        self.incompatible.report(
            batch.sender, f"it hashes prompts as {batch.hashing!r}, this picker as {self.hashing!r}"
        )
        return False

    def _on_request(self, message: Msg) -> None:
        if self.hashing:
            self._answers.receive(message)

    # Catching up

    async def join(self) -> None:
        """Get what was placed before this picker started."""
        while not (self.hashing and self._synced()):  # noqa: ASYNC110 - neither has an event
            await asyncio.sleep(LOOK)
        self._began = self._clock()
        failed: set[str] = set()
        while True:
            await self._bus.wait_connected()
            try:
                peer = await self._complete_peer(failed)
            except NoResponders:
                break
            except BusError:  # the connection is lost, or those who are there don't answer
                failed.clear()
                if self._clock() - self._began >= self._options.wait:
                    break
                await asyncio.sleep(LOOK)
                continue
            if peer is None:
                break
            if await self._restore(peer, PrefixRequest(sender=self._id), None, self._clock() + MAX_SECONDS):
                log.info("prefixes.restored", peer=peer, blocks=self._index.held)
                return
            failed.add(peer)
            if len(failed) >= MAX_ASKED:
                break
        self.peers.complete()

    async def _complete_peer(self, failed: set[str]) -> str | None:
        """A picker that has all placements; None if nobody has. Raises NoResponders if this is the only picker that
        shares any, RequestTimeout if nobody answers who isn't in `failed`, or another BusError."""
        latest: PrefixBatch | None = None

        def is_last(answer: Msg) -> bool:
            nonlocal latest
            batch = self._bus.malformed.decode(PrefixBatch, answer.data, answer.subject)
            if batch is None or batch.sender in failed:
                return False
            latest = batch
            return batch.complete and self._is_compatible(batch)

        request = encode(PrefixRequest(sender=self._id))
        try:
            await self._bus.request_many(
                self._subjects.prefix_peers(self._pool), request, last=is_last, timeout=ANSWERS, peer=True
            )
        except RequestTimeout:
            if latest is not None:
                return None
            raise
        assert latest is not None
        return latest.sender

    async def _alone(self, ask: Callable[[Origin], Awaitable[None]], origin: Origin) -> None:
        """Request from an origin, unless a request is under way."""
        if origin.requested:
            return
        origin.requested = True
        try:
            await ask(origin)
        finally:
            origin.requested = False

    async def _catch_up(self, origin: Origin) -> None:
        """Get what this picker has missed of an origin's batches."""
        until = self._clock() + MAX_SECONDS
        while self._clock() < until:
            before = origin.applied
            request = PrefixRequest(sender=self._id, run=origin.run, after=before)
            piece = await self._ask(origin.id, request, until)
            if piece is None:
                return
            if piece.run != origin.run:
                self.peers.drop_origin(origin)
                return
            if piece.origins:
                await self._restore(origin.id, request, origin, until, piece)
                return
            for payload in piece.batches:
                batch = self._bus.malformed.decode(PrefixBatch, payload, "", origin.id)
                if batch is None:
                    return
                if (batch.sender, batch.run) == (origin.id, origin.run):
                    self.peers.receive(batch, self._clock())
                await asyncio.sleep(0)
            if not piece.more or origin.applied == before:
                self.peers.answered(origin, piece.sequence)
                return

    async def _restore_own(self, origin: Origin) -> None:
        """Replace what an origin is thought to have placed by what it says."""
        request = PrefixRequest(sender=self._id, run=origin.run, after=NO_BATCH)
        if await self._restore(origin.id, request, origin, self._clock() + MAX_SECONDS):
            log.info("prefixes.repaired", peer=origin.id, batch=origin.applied)

    async def _restore(
        self,
        peer: str,
        request: PrefixRequest,
        origin: Origin | None,
        until: float,
        piece: PrefixPiece | None = None,
    ) -> bool:
        """Take a dump from a picker, of all placements or of an origin's; `piece` is its first. Whether it is whole,
        and in time."""
        restore = Restore(self.peers, self._index, self._id, self._clock(), origin)
        try:
            piece = piece or await self._ask(peer, request, until)
            while piece is not None and self._clock() < until:
                _ = self._view.layout
                restore.take(piece)
                if not piece.more:
                    restore.finish(piece.sequence)
                    return True
                piece = await self._ask(peer, PrefixRequest(sender=self._id, session=piece.session), until)
        except BaseException:
            restore.abandon()
            raise
        restore.abandon()
        return False

    async def _ask(self, peer: str, request: PrefixRequest, until: float) -> PrefixPiece | None:
        """The answer, for which a busy picker is asked again and again until that time."""
        subject = self._subjects.prefix_dump(self._pool, peer)
        try:
            while True:
                answer = await self._bus.request(subject, encode(request), timeout=PIECE, peer=True)
                piece = decode(PrefixPiece, answer.data)
                if not piece.busy:
                    return piece
                if self._clock() >= until:
                    log.info("prefixes.unanswered", peer=peer[:SHOWN], reason="it is busy")
                    return None
                await asyncio.sleep(random.uniform(*BUSY))
        except Malformed as error:
            self._bus.malformed.report(peer, error, subject=subject)
        except BusError as error:
            log.info("prefixes.unanswered", peer=peer[:SHOWN], reason=str(error)[:SHOWN])
        return None

    def __repr__(self) -> str:
        return f"<PrefixSharing of {self._id!r}: {self.mine!r}, {self.peers!r}>"
