"""Reads one pool from the bus and publishes nothing: what `pointsman top` and the console show."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from math import isfinite
from typing import Self

import structlog
from nats.aio.msg import Msg

from shared.bus import jetstream
from shared.bus.codec import decode
from shared.bus.connection import Bus
from shared.bus.errors import BusError, Malformed, NoResponders
from shared.bus.frame_reader import FrameReader
from shared.bus.heartbeat import EXPIRY
from shared.bus.incarnations import Incarnations, decode_verified
from shared.bus.messages import Candidate, Frame, Holder, Load, Member
from shared.bus.queueing_delay import IMPLAUSIBLE
from shared.bus.replica import Replica
from shared.bus.subjects import WATCHER_LEASE, Subjects
from shared.model import Configuration, Fact, Pool
from shared.pool_view.rows import AttributeValue, BandRow, EndpointRow, MemberRow, PoolState
from shared.pool_view.view import COLLECTOR, WATCHER, PoolView
from shared.tasks import cancel

LEADER_INTERVAL = 0.5
"""Seconds between two readings of the watchers' lease."""


class PoolReader:
    """The pool (a token) on this bus, which the caller starts and closes. `start`, or use as an async context manager;
    neither waits for data: see `readiness`."""

    def __init__(self, bus: Bus, subjects: Subjects, pool: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._subjects = subjects
        self.pool_token = pool
        self._clock = clock
        self._view = PoolView(EXPIRY, bus.limits)
        self._replica = Replica(bus, subjects, pool, self._view.event, clock=clock)
        self._frames = FrameReader(bus, subjects, pool, self._frame, clock=clock)
        self._pickers = Incarnations(bus.malformed.conflicting, bus.limits.max_senders)
        self._started = AsyncExitStack()

    async def start(self) -> Self:
        """Subscribe; doesn't wait for a connection."""
        subjects, pool = self._subjects, self.pool_token
        for reader in (self._replica, self._frames):
            await reader.start()
            self._started.push_async_callback(reader.close)
        for subject, handler in (
            (subjects.loads(pool), self._load),
            (subjects.members(pool, COLLECTOR), self._member),
            (subjects.candidates(WATCHER_LEASE), self._candidate),
        ):
            subscription = await self._bus.subscribe(subject, handler)
            self._started.push_async_callback(subscription.unsubscribe)
        self._started.callback(self._bus.on_connect(lambda: self._view.connected(self._clock())))
        self._started.callback(self._bus.on_disconnect(self._view.disconnected))
        self._started.push_async_callback(cancel, asyncio.create_task(self._read_leader(), name="leader"))
        return self

    async def close(self) -> None:
        await self._started.aclose()

    # What is shown

    @property
    def version(self) -> int:
        """Differs from before when anything is new. Ages grow without it."""
        return self._view.version

    @property
    def facts(self) -> Mapping[str, Fact]:
        """By key."""
        return self._view.facts

    @property
    def pool(self) -> Pool | None:
        return self._view.pool

    @property
    def configuration(self) -> Configuration | None:
        """The published one."""
        return self._view.configuration

    def rows(self) -> Iterator[EndpointRow]:
        """All endpoints, in the natural order of their names. Of many, each takes some microseconds."""
        return self._view.rows(self._clock())

    def attributes(self, id: str) -> dict[str, AttributeValue]:
        """All attributes of an endpoint, by wire name; none of one that isn't known."""
        return self._view.attributes(id, self._clock())

    def members(self) -> list[MemberRow]:
        """The live processes: watchers, collectors, pickers."""
        return self._view.members(self._clock())

    def queues(self) -> tuple[BandRow, ...]:
        """What waits at the pickers; empty without flow control."""
        return self._view.queues(self._clock())

    def readiness(self) -> str | None:
        """None once there is a complete set of facts, otherwise why there is none."""
        return self._replica.readiness()

    def state(self) -> PoolState:
        """How good the copy is."""
        ages = (self._replica.age(), self._replica.source_age(), self._frames.age())
        facts, source, frames = (age if isfinite(age) else None for age in ages)
        return PoolState(
            connected=self._bus.connected,
            synced=self._replica.synced,
            facts_age=facts,
            source_age=source,
            frames_age=frames,
            reason=self._bus.readiness() or self._replica.readiness() or "",
        )

    # What comes

    def _frame(self, frame: Frame, extra_age: float) -> None:
        self._view.frame(frame, self._clock(), extra_age)

    def _load(self, message: Msg) -> None:
        load = self._bus.malformed.decode(Load, message.data, message.subject, Subjects.sender(message.subject))
        now = self._clock()
        if load is None or not self._pickers.accepts(message.subject, load.sender, load.run, now, leaving=load.leaving):
            return
        if not self._view.load(load, now):
            self._bus.malformed.implausible.report(load.sender, IMPLAUSIBLE, subject=message.subject)

    def _member(self, message: Msg) -> None:
        member = decode_verified(Member, message.data, message.subject, self._bus.malformed, lambda member: member.id)
        if member is not None:
            self._view.observe(COLLECTOR, member.id, self._clock(), leaving=member.leaving)

    def _candidate(self, message: Msg) -> None:
        candidate = decode_verified(
            Candidate, message.data, message.subject, self._bus.malformed, lambda candidate: candidate.owner
        )
        if candidate is not None:
            self._view.observe(WATCHER, candidate.owner, self._clock(), leaving=candidate.leaving)

    async def _read_leader(self) -> None:
        """Who holds the lease: its own subject also shows those who try in vain."""
        subject = self._subjects.lease(WATCHER_LEASE)
        while True:
            try:
                stored = await jetstream.snapshot(self._bus, self._subjects.leases_bucket, subject)
                held = [decode(Holder, message.data).owner for message in stored if message.data]
                self._view.leader(held[0] if held else "")
            except (NoResponders, Malformed):
                self._view.leader("")
            except BusError as error:
                structlog.get_logger().debug("leader.unknown", reason=str(error))
            self._view.expire(self._clock())
            await asyncio.sleep(LEADER_INTERVAL)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<PoolReader {self.pool_token!r} {self._view!r}>"
