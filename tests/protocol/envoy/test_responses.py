"""What a picker sees of a response behind deploy/envoy/standalone.yaml: that it began, that it ended, and no more."""

import httpx
import pytest

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
    pool.picker.script = Script(destinations=[pool.models[0].authority], want_response=True)
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


async def test_the_picker_s_stream_ends_when_the_client_leaves(pool: Pool) -> None:
    async with (
        httpx.AsyncClient(base_url=pool.envoy.url, trust_env=False) as client,
        client.stream("POST", "/stream", content=b"x") as response,
    ):
        assert await anext(response.aiter_lines()) == "chunk 0"
    await pool.picker.last.over.wait()
    assert pool.picker.last.end in ("half-close", "cancelled")


async def test_a_server_s_death_in_the_middle_is_an_error_for_the_client(pool: Pool) -> None:
    """The response has begun: nobody can take it over."""
    async with pool.client.stream("POST", "/stream", content=b"x") as response:
        lines = response.aiter_lines()
        assert await anext(lines) == "chunk 0"
        for transport in pool.models[0].connections:
            transport.abort()
        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in lines:
                pass


async def test_a_picker_s_death_does_not_truncate_running_responses(bench: Bench) -> None:
    model = await bench.model("a")
    picker = await bench.picker_process(model.authority)
    client = await bench.client(await bench.envoy())
    async with client.stream("POST", "/stream", content=b"x") as response:
        lines = response.aiter_lines()
        assert await anext(lines) == "chunk 0"
        await picker.kill()
        model.release.set()
        assert [line async for line in lines] == ["chunk 1", "chunk 2"]
