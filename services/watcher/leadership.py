"""One active watcher, the rest on standby: the lease, and the publisher that runs while it is held.

A watcher on standby knows the facts too, from its own sources, so a take-over is nothing but to publish what differs.
It watches what the active one publishes: that tells whether there is one.
"""

import asyncio
import secrets
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

import structlog

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
    """Publishes the facts of the last `update` whenever this process leads. `run` until cancelled, then `close`.

    `alongside` is what else is done while it leads: called anew each time, and cancelled when the lease is lost. `age`
    gives the seconds since the source of a pool's facts last confirmed them. `replicas`: servers of a NATS cluster that
    each keep facts and lease.
    """

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        pool: str,
        process_id: str,
        on_event: Callable[[Event], None],
        alongside: Callable[[], Coroutine[Any, Any, None]],
        age: Callable[[str], float] = lambda _pool: 0.0,
        replicas: int = 1,
    ) -> None:
        owner = f"{process_id}/{secrets.token_hex(4)}"  # a process that starts again is another owner
        self._bus = bus
        self._pool = pool
        self._facts: Mapping[str, Fact] | None = None
        self._alongside = alongside
        self.lease = Lease(bus, subjects, LEASE, owner, replicas=replicas)
        self.publisher = FactPublisher(
            bus, subjects, owner, replicas=replicas, is_leader=lambda: self.lease.held, age=age
        )
        self.replica = Replica(bus, subjects, pool, on_event)

    @property
    def leads(self) -> bool:
        return self.lease.held

    def update(self, facts: Mapping[str, Fact], pools: Collection[str]) -> None:
        """Everything that shall be published, by key. The same facts again are nothing to do."""
        if facts != self._facts:
            self.publisher.update(facts, pools)
            self._facts = dict(facts)

    async def run(self) -> None:
        """Stand by, lead, stand by …"""
        while True:
            await self.lease.acquire()
            try:
                await self._lead()
            except LostLeadership as error:
                log.warning("leadership.lost", reason=str(error))
            finally:
                await self.lease.release()

    async def _lead(self) -> None:
        """Publish until the lease is lost. Raises LostLeadership when that shows in a write first."""
        publishing = asyncio.create_task(self.publisher.run(), name="publisher")
        alongside = asyncio.create_task(self._alongside(), name="alongside the publisher")
        losing = asyncio.create_task(self.lease.lost.wait(), name="lease lost")
        tasks: set[asyncio.Task[Any]] = {publishing, alongside, losing}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in (publishing, alongside):
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def readiness(self) -> str | None:
        """None when everything is published, by this process or by the one that leads; otherwise what is missing."""
        if self.leads:
            return self.publisher.readiness()
        if reason := self._bus.readiness() or self.replica.readiness():
            return reason
        age = self.replica.age()
        return None if age < SILENCE else f"on standby, and no watcher leads: nothing was published for {age:.1f} s"

    def state(self) -> dict[str, object]:
        """For `/debug/state`."""
        age = self.replica.age()
        return {
            "owner": self.lease.owner,
            "leads": self.leads,
            "acquisitions": self.lease.acquisitions,
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
