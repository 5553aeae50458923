"""The members of all tiers: who is heard on the bus, and what each says of itself when it is asked.

They are asked only while somebody looks.
"""

import asyncio
import time
from typing import Any

import structlog

from shared.bus.asking import ask_all
from shared.bus.connection import Bus
from shared.bus.errors import BusError, Malformed
from shared.bus.query_messages import AskStatus
from shared.bus.subjects import Subjects
from shared.pool_view.reader import PoolReader
from shared.pool_view.rows import MemberRow
from shared.service.status import MemberStatus

TIERS = ("watcher", "collector", "picker")
INTERVAL = 2.0
"""Seconds between two questions."""
TIMEOUT = 1.0
WATCHED = 10.0
"""Seconds for which members are asked after somebody has looked."""
SHOWN = 10
"""Problems of one member that are shown."""


class Members:
    """Asks the members of a reader's pool."""

    def __init__(self, bus: Bus, subjects: Subjects, reader: PoolReader) -> None:
        self._bus, self._subjects, self._reader = bus, subjects, reader
        self._wanted = asyncio.Event()
        self._looked_at = float("-inf")
        self._statuses: dict[tuple[str, str], MemberStatus] = {}

    def rows(self) -> list[MemberRow]:
        """Those that are heard."""
        return self._reader.members()

    def status(self, tier: str, id: str) -> MemberStatus | None:
        """What a member last said of itself; None before it has answered."""
        self._looked_at = time.monotonic()
        self._wanted.set()
        return self._statuses.get((tier, id))

    def described(self) -> list[dict[str, Any]]:
        """All of them, as `services.console.schemas.Member`."""
        return [_described(row, self.status(row.tier, row.id)) for row in self.rows()]

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            if time.monotonic() - self._looked_at > WATCHED:
                self._wanted.clear()
            await self._wanted.wait()
            await self.ask()
            await asyncio.sleep(INTERVAL)

    async def ask(self) -> None:
        """Ask all members once."""
        heard = self.rows()
        statuses: dict[tuple[str, str], MemberStatus] = {}

        async def ask_tier(tier: str) -> None:
            expected = [row.id for row in heard if row.tier == tier]
            try:
                answers = await ask_all(
                    self._bus,
                    self._subjects,
                    self._reader.pool_token,
                    tier,
                    AskStatus(),
                    timeout=TIMEOUT,
                    expected=expected,
                )
            except BusError:
                return  # the page says that there is no connection
            for answer in answers:
                try:
                    statuses[tier, answer.id] = answer.read(MemberStatus)
                except (BusError, Malformed) as error:
                    structlog.get_logger().warning("member.status.unknown", tier=tier, member=answer.id, reason=str(error))

        await asyncio.gather(*map(ask_tier, TIERS))
        self._statuses = statuses

    def __repr__(self) -> str:
        return f"<Members, {len(self._statuses)} have answered>"


def _described(row: MemberRow, status: MemberStatus | None) -> dict[str, Any]:
    facts = None if status is None else status.facts
    known = facts is not None and facts.digest and facts.announced_digest
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
        "agrees": facts.digest == facts.announced_digest if facts is not None and known else None,
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
    told = {**status.reasons, **status.notes}
    found = [f"{name}: {text}" for name, text in told.items()]
    if status.configuration_problem and status.configuration_problem not in told.values():
        found.append(f"configuration: {status.configuration_problem}")
    return found + [
        f"{name}: differs from what its owners announce, for {repairs.differs_for:.0f} s"
        for name, repairs in status.convergence.items()
        if repairs.differs_for
    ]
