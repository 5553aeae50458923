"""What happens to requests behind both files of deploy/envoy when a picker is killed, hangs, is slow or drains."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from pointsman.local.envoy import GATEWAY, STANDALONE, PickerAddress
from pointsman.local.process import Process
from tests.protocol.envoy.conftest import Bench
from tests.protocol.envoy.standin import Mode, Script, StandIn
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


async def test_a_picker_that_is_slow_costs_a_bounded_wait(bench: Bench) -> None:
    """It is healthy and answers PINGs, but not the request."""
    await bench.model("a")
    await bench.picker(Script(hang=True))
    client = await bench.client(await bench.envoy(message_timeout="0.3s"))
    assert await outcome(client) == "a"


@dataclass(frozen=True)
class Way:
    """A file of deploy/envoy. Pickers are spoken to over TLS, with any certificate, where it says so."""

    configuration: Path
    mode: Mode
    tls: bool

    async def victim(self, bench: Bench) -> Process:
        return await bench.picker_process(bench.models[0].authority, self.mode, tls=self.tls)

    async def picker(self, bench: Bench, at: PickerAddress | None = None) -> StandIn:
        script = Script(mode=self.mode, destinations=[bench.models[0].authority])
        return await bench.picker(script, tls=self.tls, at=at)


@pytest.fixture(
    params=[Way(STANDALONE, Mode.BUFFERED, False), Way(GATEWAY, Mode.DUPLEX, True)], ids=["ours", "gateway"]
)
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


@pytest.mark.parametrize("fault", ["killed", "hangs"])
async def test_a_picker_that_is_gone_costs_no_request_or_its_open_ones(bench: Bench, way: Way, fault: str) -> None:
    """`b` is nobody's choice: only streams that were half answered go there, and a gateway fails those. A hung picker
    keeps its port and its connections: missing answers to PINGs give it away. One that comes back is used again."""
    ours = way.configuration is STANDALONE
    models = [await bench.model(name) for name in "ab"]
    models[0].delay = 0.005
    victim = await way.victim(bench)
    other = await way.picker(bench)
    client = await bench.client(await bench.envoy(way.configuration, patient=fault == "killed" and not ours))
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

    async def recovered() -> bool:
        return {await outcome(client) for _ in range(10)} == {"a"}

    await asyncio.gather(*(worker() for _ in range(WORKERS)))
    if ours:
        assert set(outcomes) <= {"a", "b"}
    elif fault == "killed":
        assert outcomes["a"] >= REQUESTS - 2 * WORKERS, outcomes
    await eventually(recovered, "ten requests in a row")
    if fault == "killed" and ours:
        await other.stop()
        back = await way.picker(bench, at=bench.pickers[0])

        async def used() -> bool:
            assert await outcome(client) in "ab"
            return bool(back.conversations)

        await eventually(used)


async def test_a_picker_that_drains_gets_no_new_streams_and_keeps_its_open_ones(bench: Bench, way: Way) -> None:
    model = await bench.model("a")
    drained, other = await way.picker(bench), await way.picker(bench)
    envoy = await bench.envoy(way.configuration)
    client = await bench.client(envoy)
    running = [asyncio.create_task(client.post("/stream", content=BODY)) for _ in range(12)]
    await eventually(lambda: drained.open + other.open == 12)
    await eventually(lambda: all("response_headers" in c.kinds for c in drained.conversations + other.conversations))
    kept = drained.open
    assert kept > 0
    await drained.set_serving(False)
    await bench.leaves_out(envoy, drained)
    before = len(drained.conversations)
    assert {await outcome(client) for _ in range(10)} == {"a"}
    assert (len(drained.conversations), drained.open) == (before, kept)
    model.release.set()
    responses = await asyncio.gather(*running)
    assert {(one.status_code, one.text) for one in responses} == {(200, "chunk 0\nchunk 1\nchunk 2\n")}
    await eventually(lambda: drained.open == 0)
