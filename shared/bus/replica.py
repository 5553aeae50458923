"""The reader of the endpoints bucket: drives `ReplicaState`.

It subscribes to the republish subject, which shows only stored messages (the bucket's own subject also shows refused
writes), and takes snapshots by batched direct gets.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

import structlog
from msgspec import structs
from nats.aio.msg import Msg

from shared.bus import jetstream
from shared.bus.connection import Bus
from shared.bus.epochs import plausible_epoch
from shared.bus.errors import BusError, Malformed, NoResponders
from shared.bus.facts import Entry, Event, Put, parse_entry
from shared.bus.messages import Synced
from shared.bus.replica_state import Counters, Extent, ReplicaState
from shared.bus.subjects import Subjects
from shared.model import Fact
from shared.tasks import cancel, set_within


class Replica:
    """The facts of one pool (a token). `on_event` is called in the event loop with each Reset, Upsert and Delete; the
    first is a Reset. Keys are those of `shared.bus.subjects.fact_key` and `parse_key`."""

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        pool: str,
        on_event: Callable[[Event], None],
        *,
        retry: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self.pool = pool
        self._limits = bus.limits
        self._state = ReplicaState(on_event, retry=retry, limits=bus.limits)
        self._clock = clock
        self.malformed = bus.malformed
        self._wake = asyncio.Event()
        self._started = AsyncExitStack()
        self._failure = ""
        self._log = structlog.get_logger()

    async def start(self) -> None:
        """Subscribe, and take the first snapshot as soon as there is a connection; doesn't wait for it."""
        snapshots = asyncio.create_task(self._take_snapshots(), name=f"replica {self.pool}")
        self._started.push_async_callback(cancel, snapshots)
        subscription = await self._bus.subscribe(self._subjects.republished(f"{self.pool}.>"), self._receive)
        self._started.push_async_callback(subscription.unsubscribe)
        self._started.callback(self._bus.on_connect(self._connected))
        self._started.callback(self._bus.on_disconnect(self._state.disconnected))

    async def close(self) -> None:
        await self._started.aclose()

    # What the consumer may ask

    @property
    def synced(self) -> bool:
        """Whether a complete view has been had: from then on there is one, however old."""
        return self._state.synced

    def age(self) -> float:
        """Seconds since an owner last announced that the view is complete; infinite when none ever was."""
        return self._state.age(self._clock())

    def source_age(self) -> float:
        """Seconds since the facts were last known to be right: the announced age, and the time since."""
        return self._state.source_age + self.age()

    def unconfirmed(self) -> float:
        """Seconds since the facts were last confirmed by their source or, before that is known, since they were first
        complete; infinite if they never were."""
        return self._state.unconfirmed(self._clock())

    @property
    def epoch(self) -> int:
        return self._state.epoch

    def extent(self) -> tuple[Extent, Extent | None]:
        """(that of the view, that of a complete copy as the owner last said; None before it has)."""
        return self._state.extent, self._state.announced

    def differs_for(self) -> float:
        """Seconds for which the view hasn't agreed with what the owner says; 0 while it does. Another snapshot heals
        it."""
        since = self._state.differs_since
        return 0.0 if since is None else max(0.0, self._clock() - since)

    @property
    def counters(self) -> Counters:
        return self._state.counters

    def facts(self) -> dict[str, Fact]:
        """The view: facts by key."""
        return self._state.facts()

    def entries(self) -> Mapping[str, Put]:
        """What the view has by key, also what can't be decoded; not to be changed."""
        return self._state.entries()

    def readiness(self) -> str | None:
        """None once there has been a complete view, otherwise why there is none."""
        if self._state.synced:
            return None
        return self._bus.readiness() or self._failure or f"no complete set of the facts of {self.pool} yet"

    # The driver

    def _connected(self) -> None:
        self._state.connected(self._clock())
        self._wake.set()

    def _receive(self, message: Msg) -> None:
        key = self._subjects.republished_key(message.subject)
        try:
            if not jetstream.is_republished(message, self._subjects.endpoints_bucket, self._subjects.fact(key)):
                raise Malformed("the bucket hasn't stored this under this key")
            entry = self._parse(key, message.data, message.headers or {}, message.subject)
        except Malformed as error:
            self._report(error, message.subject)
            return
        self._state.receive(entry, self._clock())
        if self._state.snapshot_due() is not None:
            self._wake.set()

    def _parse(self, key: str, data: bytes, headers: Mapping[str, str], subject: str) -> Entry:
        entry = parse_entry(key, data, headers, self._limits.max_fact_entries)
        if isinstance(entry, Put) and entry.fact is None:
            self._report(entry.fault, subject, entry.epoch)
        epoch = plausible_epoch(entry.epoch, time.time())
        if epoch == entry.epoch:
            return entry
        sender = f"{self.pool}, epoch {entry.epoch}"
        self.malformed.implausible.report(sender, "that epoch is more than a day from now", subject=subject)
        if isinstance(entry, Synced):
            return structs.replace(entry, epoch=epoch)
        return structs.replace(entry, version=(epoch, entry.version[1]))

    def _report(self, error: Malformed | str, subject: str, epoch: int = 0) -> None:
        """A subject of facts doesn't name its sender. One with an epoch is, or claims to be, the watcher of that
        term."""
        self.malformed.report(f"{self.pool}, epoch {epoch}" if epoch else self.pool, error, subject=subject)

    async def _take_snapshots(self) -> None:
        while True:
            due = self._state.snapshot_due()
            wait = None if due is None else due - self._clock()
            if wait is None or wait > 0:
                self._wake.clear()
                await set_within(self._wake, wait)
                continue
            try:
                await self._take_snapshot()
            except Exception:  # noqa: BLE001 - the top of the task: without snapshots the view could never recover
                self._log.exception("replica.snapshot.failed", pool=self.pool)
                self._state.snapshot_failed(self._clock())

    async def _take_snapshot(self) -> None:
        state, generation = self._state, self._state.generation
        was_synced = state.synced
        gaps = state.counters.gaps
        state.snapshot_started(self._clock())
        if state.counters.gaps != gaps:
            view, announced = self.extent()
            self._log.warning("replica.differs", pool=self.pool, view=view, announced=announced)
        bucket = self._subjects.endpoints_bucket
        subjects = self._subjects.fact(f"{self.pool}.>")
        start = len(self._subjects.fact(""))

        def read(stored: jetstream.Stored) -> None:
            try:
                entry = self._parse(stored.subject[start:], stored.data, stored.headers, stored.subject)
            except Malformed as error:
                self._report(error, stored.subject)
                return
            if not state.snapshot_entry(entry, self._clock()):
                raise BusError(f"the facts of {self.pool} take more than {self._limits.max_fact_memory} bytes")

        try:
            await jetstream.snapshot(self._bus, bucket, subjects, read=read)
        except BusError as error:
            missing = isinstance(error, NoResponders)
            reason = f"bucket {bucket!r} is missing" if missing else str(error)
            if reason != self._failure and missing:
                self._log.info("replica.waiting", pool=self.pool, reason=reason)
            elif reason != self._failure:
                self._log.warning("replica.snapshot.failed", pool=self.pool, reason=reason)
            self._failure = reason
            if generation == state.generation:
                state.snapshot_failed(self._clock())
            return
        self._failure = ""
        if generation != state.generation:
            return
        state.snapshot_read(self._clock())
        if state.synced and not was_synced:
            self._log.info("replica.synced", pool=self.pool, epoch=state.epoch, facts=len(state.facts()))

    def __repr__(self) -> str:
        return f"<Replica {self.pool!r} age={self.age():.1f} malformed={self.malformed.total} {self._state!r}>"
