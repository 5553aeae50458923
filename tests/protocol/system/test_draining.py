"""`pointsman drain` and `undrain` under load, through the real Envoy, with each of the two configurations."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from msgspec.structs import replace

from pointsman import drain, undrain
from pointsman.local.stack import LocalStack, simulators
from tests.faults.system.load import Load
from tests.protocol.system.conftest import ENVOYS, decision, nothing_in_flight, plan
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG: dict[str, Any] = {"model": "simulated", "max_tokens": 400, "ignore_eos": True, "stream": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(ENVOYS))
async def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    directory = tmp_path_factory.mktemp(f"drain-{request.param}")
    described = plan(request.param, directory, simulators(3, speed=4))
    slow = {**described.flags, "picker": {**described.flags["picker"], "slow-start": "1h"}}
    async with LocalStack(replace(described, flags=slow, watchers=2), directory) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: LocalStack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.url, timeout=60, trust_env=False) as opened:
        yield opened
    for process in (stack.nats, *stack.watchers):
        if not process.running:  # as a failed test leaves them
            await process.start()
    for id in [row["id"] for row in (await stack.pickers[0].state())["endpoints"]]:  # a failed test leaves one
        command(stack, undrain, id)
        await drains(stack, id, False)
    await nothing_in_flight(stack.pickers)


async def endpoint(stack: LocalStack, id: str) -> list[dict[str, Any]]:
    """What each picker knows of the server."""
    states = [await picker.state() for picker in stack.pickers]
    return [row for state in states for row in state["endpoints"] if row["id"] == id]


async def busiest(stack: LocalStack) -> str:
    """The id of the server with the most requests, once one has several."""
    found = ""

    async def there() -> bool:
        nonlocal found
        state = await stack.pickers[0].state()
        most = max(state["endpoints"], key=lambda row: row["inflight"]["requests"])
        found = most["id"]
        return bool(most["inflight"]["requests"] > 1)

    await eventually(there, "a server is busy")
    return found


async def drains(stack: LocalStack, id: str, wanted: bool) -> None:
    """Wait until every picker knows that the server drains, or doesn't."""

    async def known() -> bool:
        return [row["draining"] for row in await endpoint(stack, id)] == [wanted] * len(stack.pickers)

    await eventually(known, f"{id} {'drains' if wanted else 'takes requests'}")


def command(stack: LocalStack, module: Any, id: str) -> None:
    assert module.main([id, "--endpoints-file", str(stack.endpoints_file)]) == 0


async def picks(stack: LocalStack, id: str) -> int:
    return sum(row["picks"] for row in await endpoint(stack, id))


async def test_running_requests_finish_no_new_ones_arrive_and_none_fails(
    stack: LocalStack, client: httpx.AsyncClient
) -> None:
    async with Load(stack.url) as load:
        running = [asyncio.create_task(long_request(client)) for _ in range(9)]

        id = await busiest(stack)
        command(stack, drain, id)
        await drains(stack, id, True)
        before = await picks(stack, id)
        await load.goes_on()
        assert await picks(stack, id) == before
        ended = [name for name in load.request_ids if name not in load.under_way]
        made = await decision(stack.pickers, ended[-1])
        assert made["excluded"] == {id: "draining"}
        assert id not in made["candidates"]

        for watcher in stack.watchers:  # the fact is in the file: no process and no bucket has to remember it
            await watcher.kill()
        await stack.nats.kill()
        stack.nats.wipe()
        await stack.nats.start()
        for watcher in stack.watchers:
            await watcher.start()
        await drains(stack, id, True)
        await load.goes_on()
        assert await picks(stack, id) == before
        assert await asyncio.gather(*running) == [True] * len(running)

        async def empty() -> bool:
            return not any(row["inflight"]["requests"] for row in await endpoint(stack, id))

        await eventually(empty, "its requests have finished")

        command(stack, undrain, id)
        await drains(stack, id, False)
        await load.goes_on()

        async def back() -> bool:
            return await picks(stack, id) > before

        await eventually(back, f"{id} serves again")
        assert all(row["slow_start_weight"] < 1 for row in await endpoint(stack, id))
    assert load.failures == []


async def long_request(client: httpx.AsyncClient) -> bool:
    """Whether it was answered in full."""
    async with client.stream("POST", "/v1/completions", json={**LONG, "prompt": "Who goes there?"}) as response:
        text = b"".join([chunk async for chunk in response.aiter_bytes()])
    return response.status_code == 200 and text.rstrip().endswith(b"data: [DONE]")
