"""The members of all tiers: those with heartbeats on the bus, and the status that each reports.

The console queries them only while a page is open.
"""

import asyncio
import time
from typing import Any

import structlog

from shared.bus.connection import Bus
from shared.bus.errors import BusError
from shared.bus.subjects import Subjects
from shared.pool_view.reader import PoolReader
from shared.pool_view.rows import MemberRow
from shared.service.status import MemberStatus
from shared.service.survey import Survey, survey
from shared.tasks import set_within

INTERVAL = 1.0
"""Seconds from one survey, which takes a second, to the next."""
WATCHED = 10.0
"""Seconds for which members are asked after somebody has looked."""
SHOWN = 10
"""Problems of one member that are shown."""
PATIENCE = 3.0
"""Seconds that a page waits for the first survey."""


class Members:
    """Asks the members of a reader's pool."""

    def __init__(self, bus: Bus, subjects: Subjects, reader: PoolReader) -> None:
        self._bus, self._subjects, self._reader = bus, subjects, reader
        self._wanted = asyncio.Event()
        self._looked_at = float("-inf")
        self._survey: Survey | None = None
        self._surveyed = asyncio.Event()

    def pickers(self) -> list[str]:
        """The ids of live pickers."""
        return [row.id for row in self._reader.members() if row.tier == "picker"]

    def statuses(self) -> tuple[MemberStatus, ...]:
        """The last statuses of the members; none before the first query."""
        self._looked_at = time.monotonic()
        self._wanted.set()
        return () if self._survey is None else self._survey.members

    async def answered(self) -> tuple[MemberStatus, ...]:
        """The same, after the first answers; none if these don't come in time."""
        if not self.statuses():
            await set_within(self._surveyed, PATIENCE)
        return self.statuses()

    def described(self) -> list[dict[str, Any]]:
        """All live members, as `services.console.schemas.Member`."""
        statuses = {(status.tier, status.id): status for status in self.statuses()}
        return [_described(row, statuses.get((row.tier, row.id))) for row in self._reader.members()]

    def problems(self) -> tuple[str, ...]:
        """What is wrong with the members together."""
        return () if self._survey is None else self._survey.problems

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            if time.monotonic() - self._looked_at > WATCHED:
                self._wanted.clear()
                self._survey = None
                self._surveyed.clear()
            await self._wanted.wait()
            try:
                self._survey = await survey(self._bus, self._subjects, self._reader.pool_token)
            except BusError as error:  # the page says that there is no connection
                structlog.get_logger().info("members.unknown", reason=str(error))
            self._surveyed.set()
            await asyncio.sleep(INTERVAL)

    def __repr__(self) -> str:
        return f"<Members: {0 if self._survey is None else len(self._survey.members)} have answered>"


def _described(row: MemberRow, status: MemberStatus | None) -> dict[str, Any]:
    facts = None if status is None else status.facts
    comparable = facts is not None and facts.digest and facts.announced_digest
    return {
        "tier": row.tier,
        "id": row.id,
        "age": round(row.age, 1),
        "leads": row.leader,
        "work": _work(row),
        "ready": None if status is None else status.ready,
        "version": "" if status is None else status.version,
        "uptime": None if status is None else round(status.uptime),
        "facts_age": None if facts is None or facts.age is None else round(facts.age, 1),
        "digest": "" if facts is None else facts.digest[:8],
        "agrees": facts.digest == facts.announced_digest if facts is not None and comparable else None,
        "differs_for": 0.0 if facts is None else facts.differs_for,
        "longest_pause": None if status is None else status.longest_pause,
        "problems": [] if status is None else _problems(status)[:SHOWN],
    }


def _work(row: MemberRow) -> str:
    if row.endpoints is not None:
        return f"{row.endpoints} endpoints"
    if row.in_flight is not None:
        return f"{row.in_flight} in flight" + ("" if row.waiting is None else f", {row.waiting} waiting")
    return "publishes the facts" if row.leader else "stands by"


def _problems(status: MemberStatus) -> list[str]:
    """What is wrong, the reasons for which it isn't ready first."""
    return [f"{name}: {text}" for name, text in {**status.reasons, **status.notes}.items()]
