"""What of a server that dies under an answer can be saved, and what Envoy says of the rest."""

import asyncio

import httpx
import pytest

from pointsman.demo.access_log import AccessLog
from pointsman.local.envoy import Envoy
from tests.protocol.envoy.conftest import Bench
from tests.protocol.envoy.model_server import ModelServer
from tests.protocol.envoy.standin import Script, StandIn
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def started(bench: Bench) -> tuple[ModelServer, ModelServer, StandIn, Envoy]:
    """Two servers, of which the first is picked and answers late."""
    first, second = await bench.model("a"), await bench.model("b")
    picker = await bench.picker(Script(destinations=[first.authority, second.authority]))
    first.delay = 2.0
    second.release.set()
    return first, second, picker, await bench.envoy()


async def ask(envoy: Envoy) -> httpx.Response:
    async with httpx.AsyncClient(base_url=envoy.url, timeout=30, trust_env=False) as client:
        return await client.post("/stream", content=b"x", headers={"x-request-id": "one"})


def die(server: ModelServer) -> None:
    for transport in server.connections:
        transport.abort()


async def test_what_had_not_begun_goes_to_the_fallback(bench: Bench) -> None:
    first, _, _, envoy = await started(bench)
    asked = asyncio.create_task(ask(envoy))
    await eventually(lambda: bool(first.received))
    die(first)
    assert (await asked).headers["x-served-by"] == "b"


async def test_what_had_begun_is_lost_although_nobody_has_seen_it_and_envoy_says_so(bench: Bench) -> None:
    """The server's head is with the picker when the server dies: for Envoy it is too late to ask another."""
    first, second, picker, envoy = await started(bench)
    asked = asyncio.create_task(ask(envoy))
    await eventually(lambda: bool(first.received))
    picker.script.hang = True
    await eventually(lambda: "response_headers" in picker.last.kinds)
    die(first)
    assert (await asked).status_code == 502
    assert not second.received
    assert await AccessLog(envoy.log, within=20.0).begun_by("one") == first.authority
