"""Processes that a test starts in its event loop."""

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
async def children_end_before_the_loop(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A killed process takes a moment to end. Without a loop, nobody would hear of it. For modules that import this."""
    started: list[Process] = []
    start = asyncio.create_subprocess_exec

    async def recorded(*arguments: Any, **options: Any) -> Process:
        process = await start(*arguments, **options)
        started.append(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", recorded)
    yield
    for process in started:
        await process.wait()
