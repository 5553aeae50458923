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
"""Exit code if something is wrong, or if the command can't find out."""
CONNECT = 7.0
"""Seconds that a connection may take, or `timeout`, if that is longer. A look-up of the server's name takes 5 s if the
first name server is gone."""


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
        await bus.wait_connected(max(CONNECT, settings.timeout))
        yield QueryClient(bus, subjects, pool, settings.timeout)


def lines_of(member: str, make: Callable[[], Sequence[str]]) -> Sequence[str]:
    """The lines that `make` makes of a member's answer. Raises Malformed if the answer isn't what it expects."""
    try:
        return make()
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise Malformed(f"{member}'s answer can't be shown: {type(error).__name__}: {error}") from error


def run_command(work: Coroutine[Any, Any, int]) -> int:
    """Run a command and return its exit code. If it can't reach the members, print the reason."""
    logs.configure("error", "console")
    try:
        return asyncio.run(work)
    except Invalid as error:
        report(error)
    except BusError as error:
        print_lines([str(error)], error=True)
    return FAILED
