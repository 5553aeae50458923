"""`pointsman demo`: settings, and error messages."""

import asyncio
import os
from collections.abc import Sequence
from functools import partial

from pointsman.command import run_local
from pointsman.demo.settings import DemoSettings
from shared.service.settings import parse


def main(argv: Sequence[str]) -> int:
    """`pointsman demo`: 0 if no request failed, 130 after an interrupt before the first request, otherwise 1."""
    return run_local("demo", lambda: asyncio.run(_main(parse(DemoSettings, argv, os.environ, "pointsman demo"))))


async def _main(settings: DemoSettings) -> int:
    from pointsman.demo.demo import Demo
    from pointsman.local.session import run_session
    from pointsman.top.screen import Screen

    screen = Screen(plain=settings.plain)
    return await run_session(partial(Demo, settings, screen), "demo", keep=settings.keep)
