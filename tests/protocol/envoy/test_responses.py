"""Responses behind deploy/envoy/standalone.yaml: a picker sees that they began and ended, and no more."""

import asyncio

import pytest

from pointsman.demo.access_log import AccessLog
from tests.protocol.envoy.conftest import Bench, Pool
from tests.protocol.envoy.standin import Script
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
ALL = "chunk 0\nchunk 1\nchunk 2\n"


async def test_no_byte_of_the_response_reaches_the_picker_unless_it_asks_for_it(pool: Pool) -> None:
    pool.models[0].release.set()
    assert (await pool.client.post("/stream", content=b"question")).text == ALL
    await pool.picker.last.over.wait()
    assert pool.picker.last.kinds == ["request_headers", "request_body", "response_headers"]
    assert pool.picker.last.request_body == len(b"question")
    pool.picker.script = Script(destinations=[pool.models[0].authority], want_response="BUFFERED")
    assert (await pool.client.post("/stream", content=b"x")).text == ALL
    await pool.picker.last.over.wait()
    assert pool.picker.last.kinds == ["request_headers", "request_body", "response_headers", "response_body"]
    assert pool.picker.last.response_body == ALL.encode()
    pool.picker.script = Script(destinations=[pool.models[0].authority])
    await pool.client.post("/stream", content=b"x")
    await pool.picker.last.over.wait()
    assert "response_body" not in pool.picker.last.kinds


async def test_the_picker_s_stream_stays_open_until_the_response_ends(pool: Pool) -> None:
    async with pool.client.stream("POST", "/stream", content=b"x") as response:
        lines = response.aiter_lines()
        assert await anext(lines) == "chunk 0"
        await eventually(lambda: "response_headers" in pool.picker.last.kinds)
        assert not pool.picker.last.over.is_set()
        pool.models[0].release.set()
        assert [line async for line in lines] == ["chunk 1", "chunk 2"]
    await pool.picker.last.over.wait()


async def test_a_dying_server_s_answer_is_lost_once_its_head_is_with_the_picker_and_envoy_says_so(bench: Bench) -> None:
    """Although nobody has seen it. What hadn't begun goes to the fallback."""
    first, second = await bench.model("a"), await bench.model("b")
    picker = await bench.picker(Script(destinations=[first.authority, second.authority]))
    first.delay = 2.0
    second.release.set()
    envoy = await bench.envoy()
    client = await bench.client(envoy)
    for begun in (False, True):
        first.received.clear()
        second.received.clear()
        asked = asyncio.create_task(client.post("/stream", content=b"x", headers={"x-request-id": f"begun-{begun}"}))
        await eventually(lambda: bool(first.received))
        if begun:
            picker.script.hang = True
            await eventually(lambda: "response_headers" in picker.last.kinds)
        for transport in first.connections:
            transport.abort()
        assert (await asked).status_code == (502 if begun else 200)
        assert bool(second.received) is not begun
    assert await AccessLog(envoy.log, within=20.0).responding_server("begun-True") == first.authority
