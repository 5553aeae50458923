"""`pointsman up`: settings, and what it says if it can't start."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec import structs

from pointsman.command import run_local
from pointsman.up.settings import UpSettings
from shared.service.settings import parse

DRY_RUN_DIRECTORY = "/var/lib/pointsman"


def main(argv: Sequence[str]) -> int:
    """0 after an interrupt, 130 after one during the start, 1 if it can't start."""
    return run_local("up", lambda: _main(parse(UpSettings, argv, None, "pointsman up")))


def _main(settings: UpSettings) -> int:
    from pointsman.local.binaries import BinaryMissing
    from pointsman.local.envoy import ConfigurationError
    from pointsman.local.services import console_token
    from pointsman.local.session import refuse, run_session
    from pointsman.top.screen import Screen
    from pointsman.up.plan import stack_plan
    from pointsman.up.up import Up, dry_run

    plan = stack_plan(settings, console_token())
    if settings.dry_run:
        plan = structs.replace(plan, nats_name="pointsman")
        try:
            print(dry_run(plan, Path(settings.directory or DRY_RUN_DIRECTORY).absolute()), end="")
        except (BinaryMissing, ConfigurationError) as error:
            return refuse("up", str(error))
        return 0
    screen = Screen(plain=settings.plain)
    if not screen.live:
        tiers = ("watcher", "collector", "picker", "console")
        flags = {tier: {**plan.flags.get(tier, {}), "log-format": "console"} for tier in tiers}
        plan = structs.replace(plan, flags=flags)
    return asyncio.run(run_session(partial(Up, plan, screen), "up", directory=settings.directory))
