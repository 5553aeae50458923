"""What commands that query the members of a pool share: the connection, and how they fail."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from msgspec import Meta

from pointsman.output import print_lines
from shared.bus.connection import Bus
from shared.bus.errors import BusError, Malformed
from shared.bus.subjects import Subjects
from shared.config.problems import Invalid
from shared.quantities import PositiveDuration
from shared.service import logs
from shared.service.bus import make_bus
from shared.service.settings import BusSettings, report

FAILED = 1
"""Exit code where something is wrong, or can't be found out."""
CONNECT = 5.0
"""Seconds that a connection may take."""


class QuerySettings(BusSettings, frozen=True, kw_only=True):
    """Options of a command that queries members."""

    timeout: Annotated[PositiveDuration, Meta(description="how long to wait for answers")] = 2.0


class QueryClient:
    """A connection to a pool's members."""

    def __init__(self, bus: Bus, subjects: Subjects, pool: str, timeout: float) -> None:
        self.bus, self.subjects, self.pool, self.timeout = bus, subjects, pool, timeout

    def __repr__(self) -> str:
        return f"<QueryClient {self.pool!r} {self.bus!r}>"


@asynccontextmanager
async def connected(settings: QuerySettings, command: str) -> AsyncIterator[QueryClient]:
    """A connection for as long as the block runs. Raises BusError if there is none."""
    bus, subjects, pool = make_bus(settings, command, "cli")
    async with bus:
        await bus.wait_connected(CONNECT)
        yield QueryClient(bus, subjects, pool, settings.timeout)


def lines_of(member: str, make: Callable[[], Sequence[str]]) -> Sequence[str]:
    """Lines that are made of what a member answers. Raises Malformed if that is something else than expected."""
    try:
        return make()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Malformed(f"{member} answers what can't be shown: {type(error).__name__}: {error}") from error


def run_command(work: Coroutine[Any, Any, int]) -> int:
    """Run a command to its exit code; one that can't reach the members fails with the reason."""
    logs.configure("error", "console")
    try:
        return asyncio.run(work)
    except Invalid as error:
        report(error)
    except BusError as error:
        print_lines([str(error)], error=True)
    return FAILED
