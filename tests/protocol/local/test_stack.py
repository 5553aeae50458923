"""A stack of real processes starts whole or not at all, and leaves nothing behind."""

from pathlib import Path

import httpx
import pytest

from pointsman.local.process import ProcessError
from pointsman.local.stack import LocalStack, SimulatorPlan, StackPlan


async def test_a_process_that_fails_takes_the_others_down_with_it(tmp_path: Path) -> None:
    plan = StackPlan(simulators=(SimulatorPlan(name="good"), SimulatorPlan(name="bad", flags={"slots": "many"})))
    stack = LocalStack(plan, tmp_path)
    with pytest.raises(ProcessError, match="bad ended with exit code 1 before it was ready(.|\n)*--slots"):  # noqa: RUF043
        await stack.start()
    assert [process for process in stack.processes if process.running] == []
    assert not stack["picker-1"].starts


async def test_model_servers_and_nats_run_by_themselves(tmp_path: Path) -> None:
    plan = StackPlan(simulators=(SimulatorPlan(name="m"),), watchers=0, collectors=0, pickers=0, envoy=None)
    async with LocalStack(plan, tmp_path) as stack:
        server = stack.simulators[0]
        assert (await server.state())["name"] == "m"
        assert "vllm:num_requests_running" in await server.metrics()
        await server.kill()
        with pytest.raises(httpx.ConnectError):
            await server.metrics()
        await server.start()
        assert (await server.state())["requests"] == 0
    assert [process for process in stack.processes if process.running] == []
