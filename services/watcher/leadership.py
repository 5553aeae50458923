"""Leader election: one watcher publishes, the others stand by.

A standby knows the facts from its own sources. So a take-over only publishes what differs. A standby reads what the
leader publishes, which shows whether there is a leader. A leader that doesn't know the facts yet, or has lost touch
with its sources, gives way to a watcher that is better placed.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

import structlog

from services.watcher.disagreement import CHECK, Disagreement
from shared.bus.candidacy import Candidacy, Fitness
from shared.bus.connection import Bus
from shared.bus.errors import LostLeadership
from shared.bus.facts import Event
from shared.bus.lease import Lease
from shared.bus.publisher import FactPublisher
from shared.bus.replica import Replica
from shared.bus.subjects import WATCHER_LEASE, Subjects
from shared.model import Fact

log = structlog.get_logger(__name__)

SILENCE = 3.0
"""Seconds without a message from the leader after which there is none. A take-over takes less."""


class Leadership:
    """Runs `publisher` while this process leads. `start`, `run` until cancelled, `close`.

    `while_leading` runs beside the publisher: it is called again for each term, and cancelled when the lease is lost.
    `desired` gives the facts of the pool that this process would publish, by key, and the keys that it would leave as
    they are; None while they are unknown. `age` gives the seconds since a pool's sources last confirmed its facts.
    `fitness` says how fit this process is to lead. `replicas`: servers of a NATS cluster that each keep facts
    and lease.
    """

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        pool: str,
        process_id: str,
        on_event: Callable[[Event], None],
        while_leading: Callable[[], Coroutine[Any, Any, None]],
        *,
        desired: Callable[[], tuple[Mapping[str, Fact], Collection[str]] | None],
        age: Callable[[str], float],
        fitness: Callable[[], Fitness],
        replicas: int,
    ) -> None:
        owner = f"{process_id}/{secrets.token_hex(4)}"  # a process that starts again is another owner
        self._bus = bus
        self._pool = pool
        self._desired = desired
        self.disagreement = Disagreement()
        """Between what the leader publishes and what this process would publish."""
        self._fitness = fitness
        self._while_leading = while_leading
        self.lease = Lease(bus, subjects, WATCHER_LEASE, owner, replicas=replicas)
        self.publisher = FactPublisher(
            bus,
            subjects,
            owner,
            replicas=replicas,
            is_leader=lambda: self.lease.held,
            age=age,
        )
        self.candidacy = Candidacy(bus, subjects, WATCHER_LEASE, owner, fitness)
        self.replica = Replica(bus, subjects, pool, on_event)

    @property
    def leads(self) -> bool:
        return self.lease.held

    async def start(self) -> None:
        """Subscribe to the others' messages. Call it before the connection is made."""
        await self.replica.start()
        await self.candidacy.start()

    async def close(self) -> None:
        await self.candidacy.close()
        await self.replica.close()

    async def run(self) -> None:
        """Stand by and lead in turn, for ever."""
        while True:
            await self.lease.acquire(self.candidacy.may_lead)
            try:
                await self._lead()
            except LostLeadership as error:
                log.warning("leadership.lost", reason=str(error))
            finally:
                await self.lease.release()

    async def _lead(self) -> None:
        """Publish until the lease is lost or another watcher is better placed. Raises LostLeadership if a write fails
        because the lease is lost."""
        publishing = asyncio.create_task(self.publisher.run(), name="publisher")
        beside = asyncio.create_task(self._while_leading(), name="beside the publisher")
        losing = asyncio.create_task(self.lease.lost.wait(), name="lease lost")
        preferred = asyncio.create_task(self.candidacy.wait_for_preferred(), name="preferred candidate")
        tasks: set[asyncio.Task[Any]] = {publishing, beside, losing, preferred}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in (publishing, beside):
                if task.done():
                    task.result()
            if preferred.done():
                log.warning("leadership.handed_over", to=preferred.result(), fitness=self._fitness())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def compare(self) -> None:
        """While another watcher leads, compare what it publishes with what this process would publish. Runs for
        ever."""
        while True:
            await asyncio.sleep(CHECK)
            desired = self._desired()
            if self.leads or desired is None or self.replica.age() > SILENCE:
                self.disagreement.clear()
                continue
            facts, unmanaged = desired
            await self.disagreement.compare(facts, self.replica.entries(), unmanaged, time.monotonic())

    def readiness(self) -> str | None:
        """None if everything is published, by this process or by the leader; otherwise what is missing.

        Pending changes, a write that is retried and a take-over don't count: what was published before serves
        meanwhile.
        """
        reason, age = self._bus.readiness(), self.replica.age()
        if reason or age < SILENCE:
            return reason
        if self.leads:
            return self.publisher.readiness()
        return self.replica.readiness() or f"on standby, and no watcher leads: nothing was published for {age:.1f} s"

    def state(self) -> dict[str, object]:
        """For `/debug/state`."""
        age = self.replica.age()
        return {
            "owner": self.lease.owner,
            "leads": self.leads,
            "acquisitions": self.lease.acquisitions,
            "fitness": list(self._fitness()),
            "outdone_by": self.candidacy.preferred(),
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
