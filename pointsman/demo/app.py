"""`pointsman demo`: settings, and error messages."""

import asyncio
import os
import sys
from collections.abc import Sequence
from functools import partial

from pointsman.demo.settings import DemoSettings
from shared.config import Invalid
from shared.service import parse, report

EXTRA = "httpx"
"""What is imported here and only `pointsman[local]` installs."""


def main(argv: Sequence[str]) -> int:
    """`pointsman demo`: 0 if no request failed, 130 after an interrupt before the first request, otherwise 1."""
    try:
        settings = parse(DemoSettings, argv, os.environ, "pointsman demo")
    except Invalid as error:
        return report(error)
    try:
        return asyncio.run(_main(settings))
    except ModuleNotFoundError as error:
        if error.name != EXTRA:
            raise
        print(f"pointsman demo: {EXTRA} is missing; `pip install 'pointsman[local]'` installs it", file=sys.stderr)
        return 1
    except BrokenPipeError:  # nobody reads the output; Python would print to it once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


async def _main(settings: DemoSettings) -> int:
    from pointsman.demo.demo import Demo
    from pointsman.local.session import run_session
    from pointsman.top.screen import Screen

    screen = Screen(plain=settings.plain)
    return await run_session(partial(Demo, settings, screen), "demo", keep=settings.keep)
