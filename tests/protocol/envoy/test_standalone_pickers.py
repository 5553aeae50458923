"""What happens to requests behind deploy/envoy/standalone.yaml when a picker is killed, hangs, is slow or drains."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import httpx

from tests.protocol.envoy.conftest import Bench, wait_until
from tests.protocol.envoy.standin import Script

CHAT = "/v1/chat/completions"
BODY = b"x" * 2000
WORKERS = 20


async def load(
    client: httpx.AsyncClient, requests: int, workers: int, fault: Callable[[], Awaitable[None]]
) -> Counter[str]:
    """Requests from several workers, the fault after a third of them: who served, or what went wrong."""
    outcomes: Counter[str] = Counter()
    started = 0

    async def worker() -> None:
        nonlocal started
        while started < requests:
            started += 1
            if started == requests // 3:
                await fault()
            try:
                response = await client.post(CHAT, content=BODY)
            except httpx.HTTPError as error:
                outcomes[repr(error)] += 1
            else:
                served = response.headers.get("x-served-by")
                outcomes[served if response.status_code == 200 and served else f"{response.status_code}"] += 1

    await asyncio.gather(*(worker() for _ in range(workers)))
    return outcomes


async def test_a_killed_picker_costs_no_request_and_another_one_takes_its_streams(bench: Bench) -> None:
    """`b` is nobody's choice: only streams that were half answered go there."""
    models = [await bench.model(name) for name in "ab"]
    models[0].delay = 0.005
    victim = await bench.picker_process(models[0].authority)
    await bench.picker()
    client = await bench.client(await bench.envoy())

    async def kill() -> None:
        await victim.kill()

    outcomes = await load(client, 600, WORKERS, kill)
    assert set(outcomes) <= {"a", "b"}
    assert outcomes["a"] >= 600 - WORKERS, outcomes


async def test_a_picker_that_hangs_costs_no_request_and_another_one_takes_its_streams(bench: Bench) -> None:
    """A hung picker keeps its port and its connections: missing answers to PINGs give it away."""
    models = [await bench.model(name) for name in "ab"]
    models[0].delay = 0.005
    victim = await bench.picker_process(models[0].authority)
    await bench.picker()
    client = await bench.client(await bench.envoy())

    async def pause() -> None:
        victim.pause()

    outcomes = await load(client, 600, WORKERS, pause)
    assert set(outcomes) <= {"a", "b"}
    assert outcomes["a"] >= 600 - WORKERS, outcomes


async def test_a_picker_that_is_slow_costs_a_bounded_wait(bench: Bench) -> None:
    """It is healthy and answers PINGs, but not the request."""
    await bench.model("a")
    await bench.picker(Script(hang=True))
    client = await bench.client(await bench.envoy())
    async with asyncio.timeout(10):
        response = await client.post(CHAT, content=BODY)
    assert (response.status_code, response.headers["x-served-by"]) == (200, "a")


async def test_a_picker_that_drains_gets_no_new_streams_and_keeps_its_open_ones(bench: Bench) -> None:
    model = await bench.model("a")
    drained, other = await bench.picker(), await bench.picker()
    client = await bench.client(await bench.envoy())
    running = [asyncio.create_task(client.post("/stream", content=b"x")) for _ in range(12)]
    await wait_until(lambda: drained.open + other.open == 12)
    await wait_until(lambda: all("response_headers" in c.kinds for c in drained.conversations))
    kept = drained.open
    assert kept > 0
    await drained.set_serving(False)
    await asyncio.sleep(2.0)  # the health check's interval, four times
    before = len(drained.conversations)
    for _ in range(10):
        assert (await client.post(CHAT, content=b"x")).status_code == 200
    assert len(drained.conversations) == before
    assert drained.open == kept
    model.release.set()
    assert Counter(r.status_code for r in await asyncio.gather(*running)) == {200: 12}
    await wait_until(lambda: drained.open == 0)


async def test_a_picker_that_comes_back_is_used_again(bench: Bench) -> None:
    model = await bench.model("a")
    victim = await bench.picker_process(model.authority)
    client = await bench.client(await bench.envoy())
    await client.post(CHAT, content=b"x")
    await victim.kill()
    bench.endpoints([model.authority])
    assert (await client.post(CHAT, content=b"x")).status_code == 200
    replacement = await bench.picker(at=bench.pickers[0])
    async with asyncio.timeout(5):
        while not replacement.conversations:
            assert (await client.post(CHAT, content=b"x")).status_code == 200
