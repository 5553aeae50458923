"""What happens to requests behind deploy/envoy/standalone.yaml when a picker is killed, hangs, is slow or drains."""

import asyncio
from collections import Counter

import httpx
import pytest

from pointsman.local.process import Process
from tests.protocol.envoy.conftest import Bench
from tests.protocol.envoy.standin import Script
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
BODY = b"x" * 2000
WORKERS = 10
REQUESTS = 150


async def outcome(client: httpx.AsyncClient) -> str:
    """Who serves a request, or what goes wrong."""
    try:
        response = await client.post(CHAT, content=BODY)
    except httpx.HTTPError as error:
        return repr(error)
    served = response.headers.get("x-served-by", "")
    return served if response.status_code == 200 else str(response.status_code)


async def load(client: httpx.AsyncClient, victim: Process, fault: str) -> Counter[str]:
    """Requests from several workers; after a third of them the victim is killed, or hangs."""
    outcomes: Counter[str] = Counter()
    started = 0

    async def worker() -> None:
        nonlocal started
        while started < REQUESTS:
            started += 1
            if started == REQUESTS // 3:
                if fault == "killed":
                    await victim.kill()
                else:
                    victim.pause()
            outcomes[await outcome(client)] += 1

    await asyncio.gather(*(worker() for _ in range(WORKERS)))
    return outcomes


async def recovers(client: httpx.AsyncClient) -> None:
    """Wait until ten requests in a row go where a picker says."""

    async def so() -> bool:
        return {await outcome(client) for _ in range(10)} == {"a"}

    await eventually(so, "ten requests in a row")


@pytest.mark.parametrize("fault", ["killed", "hangs"])
async def test_a_picker_that_is_gone_costs_no_request_and_another_one_takes_its_streams(
    bench: Bench, fault: str
) -> None:
    """`b` is nobody's choice: only streams that were half answered go there. A hung picker keeps its port and its
    connections: missing answers to PINGs give it away."""
    models = [await bench.model(name) for name in "ab"]
    models[0].delay = 0.005
    victim = await bench.picker_process(models[0].authority)
    await bench.picker()
    client = await bench.client(await bench.envoy(patient=False))
    assert set(await load(client, victim, fault)) <= {"a", "b"}
    await recovers(client)


async def test_a_picker_that_is_slow_costs_a_bounded_wait(bench: Bench) -> None:
    """It is healthy and answers PINGs, but not the request."""
    await bench.model("a")
    await bench.picker(Script(hang=True))
    client = await bench.client(await bench.envoy(message_timeout="0.3s"))
    assert await outcome(client) == "a"


async def test_a_picker_that_drains_gets_no_new_streams_and_keeps_its_open_ones(bench: Bench) -> None:
    model = await bench.model("a")
    drained, other = await bench.picker(), await bench.picker()
    envoy = await bench.envoy()
    client = await bench.client(envoy)
    running = [asyncio.create_task(client.post("/stream", content=b"x")) for _ in range(12)]
    await eventually(lambda: drained.open + other.open == 12)
    await eventually(lambda: all("response_headers" in c.kinds for c in drained.conversations))
    kept = drained.open
    assert kept > 0
    await drained.set_serving(False)
    await bench.leaves_out(envoy, drained)
    before = len(drained.conversations)
    assert {await outcome(client) for _ in range(10)} == {"a"}
    assert (len(drained.conversations), drained.open) == (before, kept)
    model.release.set()
    assert Counter(r.status_code for r in await asyncio.gather(*running)) == {200: 12}
    await eventually(lambda: drained.open == 0)


async def test_a_picker_that_comes_back_is_used_again(bench: Bench) -> None:
    model = await bench.model("a")
    victim = await bench.picker_process(model.authority)
    client = await bench.client(await bench.envoy())
    assert await outcome(client) == "a"
    await victim.kill()
    assert await outcome(client) == "a"
    replacement = await bench.picker(at=bench.pickers[0])
    outcomes: set[str] = set()

    async def used() -> bool:
        outcomes.add(await outcome(client))
        return bool(replacement.conversations)

    await eventually(used)
    assert outcomes == {"a"}
