"""A tiny tier, run as a process by the tests: it does on request what a tier does, and what goes wrong in one.

It reports each step of its life as a line on stdout.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, Literal

from fastapi import APIRouter

from shared.config.problems import Invalid, Problem
from shared.service.process import Service, run
from shared.service.settings import CommonSettings


class TinySettings(CommonSettings, frozen=True, kw_only=True):
    """A tier for tests."""

    start_does: Literal["return", "wait", "refuse", "fail"] = "return"
    drain_takes: float = 0.0
    drain_fails: bool = False
    close_takes: float = 0.0
    close_fails: bool = False
    goes_on: Literal["", "start", "task", "drain", "close", "thread"] = ""
    """What ignores that it is cancelled."""


def say(step: str) -> None:
    print(step, flush=True)


class Tiny(Service):
    """Says what it does."""

    tier = "tiny"

    def __init__(self, settings: TinySettings) -> None:
        super().__init__(settings)
        self._settings = settings
        self._goes_on: asyncio.Task[Any] | None = None
        say("made")

    async def start(self) -> None:
        say("start")
        match self._settings.start_does:
            case "wait":
                try:
                    await asyncio.Event().wait()
                finally:
                    say("start given up")
            case "refuse":
                raise Invalid([Problem("pool", "is odd"), Problem("colour", "is red")], "pool.yaml")
            case "fail":
                raise OSError("the disk is gone")
        await self._go_on("start")
        self.spawn(self._work(), "work")
        say("started")

    async def _go_on(self, what: str) -> None:
        if what != self._settings.goes_on:
            return
        say(f"{what} goes on")
        self._goes_on = asyncio.current_task()  # asyncio itself holds tasks weakly
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def _work(self) -> None:
        await self._go_on("task")
        if self._settings.goes_on == "thread":
            say("thread goes on")
            await asyncio.to_thread(threading.Event().wait)
        try:
            await asyncio.Event().wait()
        finally:
            say("work cancelled")

    async def drain(self) -> None:
        say("drain")
        if self._settings.drain_fails:
            raise OSError("no drain")
        await self._go_on("drain")
        await asyncio.sleep(self._settings.drain_takes)
        say("drained")

    async def close(self) -> None:
        say("close")
        if self._settings.close_fails:
            raise OSError("no close")
        await self._go_on("close")
        await asyncio.sleep(self._settings.close_takes)
        say("closed")

    def state(self) -> Mapping[str, Any]:
        return {"pid": os.getpid(), "nothing": float("nan")}

    def routes(self) -> APIRouter:
        router = APIRouter()

        @router.post("/crash/{kind}")
        async def crash(kind: str) -> None:
            self.spawn(self._crash(), f"{kind}-work", essential=kind == "essential")

        return router

    async def _crash(self) -> None:
        raise RuntimeError("a bug")


if __name__ == "__main__":
    sys.exit(run(TinySettings, Tiny, sys.argv[1:], "tiny"))
