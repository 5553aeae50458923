"""`pointsman up` from start to end."""

import asyncio
from functools import partial
from pathlib import Path

from pointsman.local.ports import NATS_PORT, UsualPorts
from pointsman.local.session import GOOD, Session
from pointsman.local.stack import LocalStack, StackPlan
from pointsman.local.supervisor import Supervisor
from pointsman.top.screen import Screen
from pointsman.top.snapshot import snapshot
from pointsman.top.view import render, status_line, title
from pointsman.up.logs import Logs
from pointsman.up.script import script
from shared.bus.connection import Bus
from shared.bus.subjects import Subjects, pool_token
from shared.pool_view.reader import PoolReader

PICTURE_INTERVAL = 0.5
"""Seconds between two pictures."""


class Up(Session):
    """The plan's processes, watched over and shown. A screen without a terminal shows logs instead."""

    def __init__(self, plan: StackPlan, screen: Screen, directory: Path) -> None:
        super().__init__(screen, directory)
        self._plan = plan

    def make(self) -> LocalStack:
        return LocalStack(self._plan, self.directory)

    async def meanwhile(self, stack: LocalStack) -> int:
        for line in self._hints(stack):
            self.screen.line(line)
        shown = self._show(stack) if self.screen.live else Logs(stack.processes, self.screen.line).run()
        await self.until_stopped(Supervisor(stack.processes, self.screen.line).run(), shown)
        return GOOD

    def _hints(self, stack: LocalStack) -> list[str]:
        flag = "" if stack.nats.port == NATS_PORT else f" --nats-url {stack.nats.url}"
        return [
            "",
            f"Send requests to {stack.url}, from here or another terminal:",
            f"  curl {stack.url}/v1/models",
            *(f"See the pool in a browser: {console.page}" for console in stack.consoles),
            *([f"It asks for a token: {token}"] if (token := stack.plan.console_token) else ()),
            "See the pool from another terminal, and why requests went where they went:",
            f"  pointsman top{flag}",
            f"  curl '{stack.pickers[0].url}/debug/decisions?limit=3'",
            "",
        ]

    async def _show(self, stack: LocalStack) -> None:
        plan = self._plan
        name, token = f"{plan.pool_namespace}/{plan.pool_name}", pool_token(plan.pool_namespace, plan.pool_name)
        async with Bus(stack.nats.url, name="pointsman-up") as bus, PoolReader(bus, Subjects(), token) as reader:
            while True:
                seen = snapshot(reader, name)
                head = [title(seen, (f"{stack.url}  ", "cyan"))]
                self.screen.picture(partial(render, seen, head=head), partial(status_line, seen))
                await asyncio.sleep(PICTURE_INTERVAL)


def dry_run(plan: StackPlan, directory: Path) -> str:
    """The script of a plan, with the usual ports. Raises BinaryMissing and ConfigurationError."""
    return script(LocalStack(plan, directory, UsualPorts()))
