"""The simulator as a process: flags, signals, exit codes."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.command_line


@contextlib.asynccontextmanager
async def process(*flags: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`pointsman simulator` on a free port, and its address as its own log has it."""
    command = [sys.executable, "-m", "pointsman", "simulator", "--port", "0", *flags]
    running = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        yield running, (await logged(running, "simulator.started"))["url"]
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


async def logged(running: asyncio.subprocess.Process, event: str) -> dict[str, str]:
    """The log line of that event, once it is there."""
    assert running.stderr is not None
    async for line in running.stderr:
        fields: dict[str, str] = json.loads(line)
        if fields["event"] == event:
            return fields
    raise AssertionError(f"the simulator ended with {await running.wait()} before {event}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_running_requests_end(number: signal.Signals) -> None:
    async with (
        process("--models", "m", "--decode-time", "2ms") as (running, url),
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        body: dict[str, Any] = {"model": "m", "prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.aiter_lines()
            received = [await anext(lines)]
            running.send_signal(number)
            received += [line async for line in lines if line]
        *events, done = [line.removeprefix("data: ") for line in received]
        assert done == "[DONE]"
        assert sum(len(json.loads(event)["choices"][0]["text"]) for event in events) == 200 * 4
        assert await running.wait() == 0


async def test_a_second_signal_ends_it_at_once() -> None:
    async with process("--models", "m") as (running, url), httpx.AsyncClient(base_url=url, timeout=60) as client:
        body: dict[str, Any] = {"model": "m", "prompt": "x", "max_tokens": 60_000, "ignore_eos": True, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.aiter_lines()  # held on to: without, it is collected and closes the answer
            await anext(lines)
            running.send_signal(signal.SIGTERM)
            await logged(running, "simulator.draining")
            running.send_signal(signal.SIGTERM)
            assert await running.wait() == 128 + signal.SIGTERM


async def test_wrong_settings_start_nothing() -> None:
    command = [sys.executable, "-m", "pointsman", "simulator", "--slots", "0", "--engine", "vlm"]
    running = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, output = await running.communicate()
    assert running.returncode == 1
    assert b"--slots: 0" in output
    assert b"--engine: 'vlm'" in output
    assert b"Traceback" not in output
