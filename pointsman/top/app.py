"""`pointsman top`: settings, the connection, and the loop that redraws."""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import structlog
from msgspec import Meta
from rich.console import Console

from pointsman.command import USAGE_ERROR, Format, print_json
from pointsman.top.screen import Screen
from pointsman.top.snapshot import snapshot
from pointsman.top.view import Sorting, render, status_line
from shared.bus.heartbeat import INTERVAL
from shared.config import Invalid
from shared.pool_view.reader import PoolReader
from shared.quantities import PositiveDuration
from shared.service.bus import make_bus
from shared.service.settings import BusSettings, parse, report

HEARD = 1.5 * INTERVAL
"""Seconds after which every member has sent a heartbeat."""
_STEP = 0.02


class TopSettings(BusSettings, frozen=True, kw_only=True):
    """Shows a pool: its endpoints, its queues, and the members of each tier, as published on the bus.

    With --once, exits with 0 if there is a complete view, otherwise with 1."""

    once: Annotated[bool, Meta(description="show the pool once and exit")] = False
    format: Format = "text"
    sort: Annotated[Sorting, Meta(description="order of the endpoints; by numbers, the greatest first")] = "name"
    refresh: Annotated[PositiveDuration, Meta(description="time between two pictures")] = 0.5
    wait: Annotated[PositiveDuration, Meta(description="with --once: time limit for a complete view")] = 5.0


def main(argv: Sequence[str]) -> int:
    """`pointsman top`."""
    try:
        settings = parse(TopSettings, argv, os.environ, "pointsman top")
        if settings.format == "json" and not settings.once:
            print("--format: json needs --once", file=sys.stderr)
            return USAGE_ERROR
        structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # the screen shows what matters
        return asyncio.run(_main(settings))
    except Invalid as error:
        return report(error)


async def _main(settings: TopSettings) -> int:
    bus, subjects, pool = make_bus(settings, "top", str(os.getpid()))
    name = f"{settings.pool_namespace}/{settings.pool_name}"
    async with bus, PoolReader(bus, subjects, pool) as reader:
        if settings.once:
            return await _once(settings, reader, name)
        screen = Screen(interval=max(settings.refresh, 1.0))
        try:
            while True:
                seen = snapshot(reader, name)
                screen.picture(partial(render, seen, sort=settings.sort), partial(status_line, seen))
                await asyncio.sleep(settings.refresh)
        finally:
            screen.close()


async def _once(settings: TopSettings, reader: PoolReader, name: str) -> int:
    deadline = time.monotonic() + settings.wait
    while reader.readiness() is not None and time.monotonic() < deadline:  # noqa: ASYNC110 -- it has no event
        await asyncio.sleep(_STEP)
    if reader.readiness() is None:
        await asyncio.sleep(HEARD)
    seen = snapshot(reader, name)
    if settings.format == "json":
        print_json(seen)
    else:
        console = Console(highlight=False, markup=False, emoji=False)
        console.print(render(seen, console.width, sort=settings.sort))
    return 1 if seen.state.reason else 0
