"""One active watcher, the rest on standby: the lease, and the publisher that runs while it is held.

A watcher on standby knows the facts too, from its own sources, so a take-over is nothing but to publish what differs.
It watches what the active one publishes: that tells whether there is one. One that doesn't know the facts yet, or has
lost touch with where they come from, gives way to one that is better placed.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

import structlog

from services.watcher.disagreement import CHECK, Disagreement
from shared.bus.candidacy import Candidacy, Fitness
from shared.bus.codec import MalformedLog
from shared.bus.connection import Bus
from shared.bus.errors import LostLeadership
from shared.bus.lease import Lease
from shared.bus.publisher import FactPublisher
from shared.bus.replica import Replica
from shared.bus.replica_state import Event
from shared.bus.subjects import Subjects
from shared.model import Fact

log = structlog.get_logger(__name__)

LEASE = "watcher"
"""The lease's name. One group of watchers owns the bucket of facts, so there is one lease in an installation."""
SILENCE = 3.0
"""Seconds without a word from the active watcher after which there is none: a take-over takes less."""


class Leadership:
    """Publishes the facts of the last `update` whenever this process leads. `start`, `run` until cancelled, `close`.

    `alongside` is what else is done while it leads: called anew each time, and cancelled when the lease is lost. `age`
    gives the seconds since the source of a pool's facts last confirmed them, `fitness` how well this process is placed
    to lead. `replicas`: servers of a NATS cluster that each keep facts and lease.
    """

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        pool: str,
        process_id: str,
        on_event: Callable[[Event], None],
        alongside: Callable[[], Coroutine[Any, Any, None]],
        *,
        age: Callable[[str], float],
        fitness: Callable[[], Fitness],
        replicas: int,
    ) -> None:
        owner = f"{process_id}/{secrets.token_hex(4)}"  # a process that starts again is another owner
        self._bus = bus
        self._pool = pool
        self._told: tuple[Mapping[str, Fact], frozenset[str], frozenset[str]] | None = None
        """Facts, pools, and what is kept, of the last `update`."""
        self.disagreement = Disagreement()
        """Between what is published and what this process would publish."""
        self._fitness = fitness
        self._alongside = alongside
        self.malformed = MalformedLog(time.monotonic)
        """What comes over the bus and can't be decoded."""
        self.lease = Lease(bus, subjects, LEASE, owner, replicas=replicas)
        self.publisher = FactPublisher(
            bus,
            subjects,
            owner,
            replicas=replicas,
            is_leader=lambda: self.lease.held,
            age=age,
            malformed=self.malformed,
        )
        self.candidacy = Candidacy(bus, subjects, LEASE, owner, fitness, malformed=self.malformed)
        self.replica = Replica(bus, subjects, pool, on_event, malformed=self.malformed)

    @property
    def leads(self) -> bool:
        return self.lease.held

    def update(self, facts: Mapping[str, Fact], pools: Collection[str], kept: Collection[str]) -> None:
        """Everything that shall be published, by key, and what is kept as it is found: pools by token, facts by key.
        The same again is nothing to do."""
        told = dict(facts), frozenset(pools), frozenset(kept)
        if told != self._told:
            self.publisher.update(facts, pools, kept)
            self._told = told

    async def start(self) -> None:
        """Begin to hear of the others. To be called before the connection is made."""
        await self.replica.start()
        await self.candidacy.start()

    async def close(self) -> None:
        await self.candidacy.close()
        await self.replica.close()

    async def run(self) -> None:
        """Stand by, lead, stand by …"""
        while True:
            await self.lease.acquire(self.candidacy.may_lead)
            try:
                await self._lead()
            except LostLeadership as error:
                log.warning("leadership.lost", reason=str(error))
            finally:
                await self.lease.release()

    async def _lead(self) -> None:
        """Publish until the lease is lost, or somebody else is better placed. Raises LostLeadership when a write shows
        first that it is lost."""
        publishing = asyncio.create_task(self.publisher.run(), name="publisher")
        alongside = asyncio.create_task(self._alongside(), name="alongside the publisher")
        losing = asyncio.create_task(self.lease.lost.wait(), name="lease lost")
        outdone = asyncio.create_task(self.candidacy.outdone(), name="outdone")
        tasks: set[asyncio.Task[Any]] = {publishing, alongside, losing, outdone}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in (publishing, alongside):
                if task.done():
                    task.result()
            if outdone.done():
                log.warning("leadership.given", to=outdone.result(), fitness=self._fitness())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def compare(self) -> None:
        """While another one leads: look whether it publishes what this process would. For ever."""
        while True:
            await asyncio.sleep(CHECK)
            facts, pools, kept = self._told or ({}, frozenset(), frozenset())
            if self.leads or self._pool not in pools or self.replica.age() > SILENCE:
                self.disagreement.clear()
                continue
            ours = {key: fact for key, fact in facts.items() if key.startswith(f"{self._pool}.")}
            self.disagreement.compare(ours, self.replica.facts(), kept, time.monotonic())

    def readiness(self) -> str | None:
        """None when everything is published, by this process or by the one that leads; otherwise what is missing.

        Changes that are on their way, a write that is tried again and a take-over are no reasons: what was published a
        moment ago serves meanwhile.
        """
        reason, age = self._bus.readiness(), self.replica.age()
        if reason or age < SILENCE:
            return reason
        if self.leads:
            return self.publisher.readiness()
        nobody = f"on standby, and no watcher leads: nothing was published for {age:.1f} s"
        return self.replica.readiness() or nobody

    def state(self) -> dict[str, object]:
        """For `/debug/state`."""
        age = self.replica.age()
        return {
            "owner": self.lease.owner,
            "leads": self.leads,
            "acquisitions": self.lease.acquisitions,
            "fitness": list(self._fitness()),
            "outdone_by": self.candidacy.outdone_by(),
            "disagreement": self.disagreement.reason,
            "epoch": self.publisher.epoch if self.leads else self.replica.epoch,
            "published": self.publisher.published,
            "written": self.publisher.written,
            "deleted": self.publisher.deleted,
            "failures": self.publisher.failures,
            "seen_published": sum(key.startswith(f"{self._pool}.") for key in self.replica.facts()),
            "seen_age": round(age, 3) if age < float("inf") else None,
        }

    def __repr__(self) -> str:
        return f"<Leadership {self.lease!r} {self.publisher!r}>"
