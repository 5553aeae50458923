"""A picker behind both files of deploy/envoy that is slow or drains. Killed and hanging ones: tests/faults/system."""

import asyncio
from pathlib import Path

import pytest

from pointsman.local.envoy import GATEWAY, STANDALONE
from tests.protocol.envoy.conftest import Bench
from tests.protocol.envoy.standin import Mode, Script
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_picker_that_is_slow_costs_a_bounded_wait(bench: Bench) -> None:
    """It is healthy and answers PINGs, but not the request."""
    await bench.model("a")
    await bench.picker(Script(hang=True))
    client = await bench.client(await bench.envoy(message_timeout="0.3s"))
    assert (await client.post("/", content=b"x")).headers["x-served-by"] == "a"


@pytest.mark.parametrize(
    ("configuration", "mode", "tls"),
    [(STANDALONE, Mode.BUFFERED, None), (GATEWAY, Mode.DUPLEX, False)],
    ids=["ours", "gateway"],
)
async def test_a_picker_that_drains_gets_no_new_streams_and_keeps_its_open_ones(
    bench: Bench, configuration: Path, mode: Mode, tls: bool | None
) -> None:
    model = await bench.model("a")
    script = Script(mode=mode, destinations=[model.authority])
    drained, other = await bench.picker(script), await bench.picker(script)
    envoy = await bench.envoy(configuration, picker_tls=tls)
    client = await bench.client(envoy)
    running = [asyncio.create_task(client.post("/stream", content=b"x")) for _ in range(12)]
    await eventually(lambda: drained.open + other.open == 12)
    await eventually(lambda: all("response_headers" in c.kinds for c in drained.conversations + other.conversations))
    kept = drained.open
    assert kept > 0
    await drained.set_serving(False)
    await bench.leaves_out(envoy, drained)
    before = len(drained.conversations)
    assert {(await client.post("/", content=b"x")).headers["x-served-by"] for _ in range(10)} == {"a"}
    assert (len(drained.conversations), drained.open) == (before, kept)
    model.release.set()
    responses = await asyncio.gather(*running)
    assert {(response.status_code, response.text) for response in responses} == {(200, "chunk 0\nchunk 1\nchunk 2\n")}
    await eventually(lambda: drained.open == 0)
