"""A stack of real processes starts whole or not at all, and leaves nothing behind."""

import asyncio
import signal
import sys
from pathlib import Path

import nats
import pytest

from pointsman.local.nats import NatsServer
from pointsman.local.process import ProcessError
from pointsman.local.stack import LocalStack, SimulatorPlan, StackPlan
from tests.nats import free_port


def left_of(pids: list[int]) -> list[int]:
    """Those that still run."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def test_a_process_that_fails_takes_the_others_down_with_it(tmp_path: Path) -> None:
    plan = StackPlan(simulators=(SimulatorPlan(name="good"), SimulatorPlan(name="bad", flags={"slots": "many"})))
    stack = LocalStack(plan, tmp_path)
    with pytest.raises(ProcessError, match="bad ended with exit code 1 before it was ready(.|\n)*--slots"):  # noqa: RUF043
        await stack.start()
    assert [process for process in stack.processes if process.running] == []
    assert not stack["picker-1"].starts


async def test_an_interrupt_at_the_terminal_ends_every_process(tmp_path: Path) -> None:
    code = f"""
import asyncio
import signal
from pathlib import Path
from pointsman.local.stack import LocalStack, StackPlan, simulators

async def main():
    plan = StackPlan(simulators=simulators(1), collectors=0, pickers=1)
    async with LocalStack(plan, Path({str(tmp_path)!r})) as stack:
        print("pids", *(process.pid for process in stack.processes), flush=True)
        await asyncio.sleep(600)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert parent.stdout is not None
    line = b""
    while not line.startswith(b"pids"):  # before it come log lines
        line = await parent.stdout.readline()
        assert line, "the parent has ended"
    pids = [int(word) for word in line.split()[1:]]
    assert len(pids) == 5
    parent.send_signal(signal.SIGINT)
    rest = await parent.stdout.read()
    assert await parent.wait() != 0, rest
    assert left_of(pids) == []


async def keys(server: NatsServer) -> list[str]:
    client = await nats.connect(server.url)
    try:
        jetstream = client.jetstream()
        bucket = await jetstream.create_key_value(bucket="b")
        await bucket.put(f"run-{server.starts}", b"x")
        found = (await jetstream.stream_info("KV_b", subjects_filter=">")).state.subjects or {}
        return sorted(subject.removeprefix("$KV.b.") for subject in found)
    finally:
        await client.close()


async def test_the_store_outlives_restarts_and_kills_until_it_is_wiped(tmp_path: Path) -> None:
    async with NatsServer(tmp_path, free_port()) as server:
        assert await keys(server) == ["run-1"]
        await server.restart()
        assert await keys(server) == ["run-1", "run-2"]
        with pytest.raises(ProcessError, match="is running, so its store can't be removed"):
            server.wipe()
        await server.kill()
        server.wipe()
        await server.start()
        assert await keys(server) == ["run-3"]
