"""Which candidate for a lease should lead: each publishes its fitness and gives way to a fitter one.

The lease ensures that one watcher leads, not that it is able to: it may know nothing yet, or have lost its sources. A
candidate that isn't the fittest doesn't try for the lease, and gives it back if that lasts. Silent candidates don't
count.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TypeAlias

from nats.aio.msg import Msg

from shared.bus.codec import encode
from shared.bus.connection import Bus
from shared.bus.heartbeat import EXPIRY, INTERVAL, beat
from shared.bus.incarnations import decode_verified
from shared.bus.messages import Candidate
from shared.bus.subjects import Subjects
from shared.limits import LIMITS
from shared.tasks import cancel

Fitness: TypeAlias = tuple[int, ...]
"""Compared as tuples are: the first number counts most."""

PATIENCE = 3.0


class Candidates:
    """Other candidates that were seen lately, by the receiver's monotonic clock. Beyond `limit`, new ones are ignored
    until others fall silent."""

    def __init__(self, expiry: float = EXPIRY, limit: int = LIMITS.max_watchers) -> None:
        self._expiry = expiry
        self._limit = limit
        self._last_seen: dict[str, tuple[float, Fitness]] = {}

    def observe(self, candidate: Candidate, now: float) -> None:
        """Process the heartbeat of a candidate."""
        if candidate.leaving:
            self._last_seen.pop(candidate.owner, None)
            return
        if candidate.owner not in self._last_seen and len(self._last_seen) >= self._limit:
            self._last_seen = self._live_candidates(now)
        if candidate.owner in self._last_seen or len(self._last_seen) < self._limit:
            self._last_seen[candidate.owner] = now, candidate.fitness

    def better(self, fitness: Fitness, now: float) -> str | None:
        """The fittest candidate that is fitter than this; None if none is."""
        live = self._live_candidates(now)
        best = max(live, key=lambda owner: (live[owner][1], owner), default=None)
        return best if best is not None and live[best][1] > fitness else None

    def owners(self, now: float) -> tuple[str, ...]:
        """Those that are live, sorted."""
        return tuple(sorted(self._live_candidates(now)))

    def __len__(self) -> int:
        return len(self._last_seen)

    def _live_candidates(self, now: float) -> dict[str, tuple[float, Fitness]]:
        return {owner: seen for owner, seen in self._last_seen.items() if now - seen[0] < self._expiry}


class Candidacy:
    """`owner` as a candidate for the lease `name`. `fitness` is asked before each heartbeat and each comparison. In
    seconds: `interval` between heartbeats, `expiry` until a silent candidate doesn't count, `patience` for which
    another must be fitter before the leader gives way."""

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        name: str,
        owner: str,
        fitness: Callable[[], Fitness],
        *,
        interval: float = INTERVAL,
        expiry: float = EXPIRY,
        patience: float = PATIENCE,
    ) -> None:
        self._bus = bus
        self._everybody = subjects.candidates(name)
        self._subject = subjects.candidate(name, owner)
        self.owner = owner
        self.fitness = fitness
        self._interval = interval
        self._expiry = expiry
        self._patience = patience
        self._candidates = Candidates(expiry, bus.limits.max_watchers)
        self._listens_since: float | None = None
        self._started = AsyncExitStack()

    async def start(self) -> None:
        self._started.push_async_callback(self._publish_heartbeat, leaving=True)
        subscription = await self._bus.subscribe(self._everybody, self._receive)
        self._started.push_async_callback(subscription.unsubscribe)
        beats = beat(
            self._publish_heartbeat, self._interval, time.monotonic, "candidate.heartbeat.failed", owner=self.owner
        )
        self._started.push_async_callback(cancel, asyncio.create_task(beats, name=f"candidate {self.owner}"))
        self._started.callback(self._bus.on_connect(self._connected))
        self._started.callback(self._bus.on_disconnect(self._disconnected))

    async def close(self) -> None:
        """Withdraw, and publish that at once."""
        await self._started.aclose()

    def may_lead(self) -> bool:
        """Whether to try for the lease: no candidate is fitter. A candidate without any fitness listens for a while
        first."""
        fitness = self.fitness()
        if not any(fitness) and (self._listens_since is None or time.monotonic() - self._listens_since < self._expiry):
            return False
        return self._candidates.better(fitness, time.monotonic()) is None

    def others(self) -> tuple[str, ...]:
        """The other candidates that are live, sorted."""
        return self._candidates.owners(time.monotonic())

    def preferred(self) -> str | None:
        """The fittest candidate among the fitter ones; None if there is none."""
        return self._candidates.better(self.fitness(), time.monotonic())

    async def wait_for_preferred(self) -> str:
        """Wait until another candidate has been fitter for `patience` seconds; returns its id."""
        since: float | None = None
        while True:
            better, now = self.preferred(), time.monotonic()
            if better is None:
                since = None
            elif since is None:
                since = now
            elif now - since >= self._patience:
                return better
            await asyncio.sleep(self._interval / 2)

    def _connected(self) -> None:
        self._listens_since = time.monotonic()

    def _disconnected(self) -> None:
        self._listens_since = None

    def _receive(self, message: Msg) -> None:
        candidate = decode_verified(
            Candidate, message.data, message.subject, self._bus.malformed, lambda candidate: candidate.owner
        )
        if candidate is not None:
            self._candidates.observe(candidate, time.monotonic())

    async def _publish_heartbeat(self, *, leaving: bool = False) -> None:
        candidate = Candidate(owner=self.owner, fitness=self.fitness(), leaving=leaving)
        await self._bus.publish(self._subject, encode(candidate))

    def __repr__(self) -> str:
        return f"<Candidacy {self.owner!r} {self.fitness()}, preferred {self.preferred() or 'nobody'}>"
