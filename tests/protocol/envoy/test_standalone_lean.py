"""What a picker sees of a response behind deploy/envoy/standalone.yaml: that it began, that it ended, and no more."""

import httpx
import pytest

from tests.protocol.envoy.conftest import Bench, wait_until
from tests.protocol.envoy.standin import Script


async def test_no_byte_of_the_response_reaches_the_picker(bench: Bench) -> None:
    model = await bench.model("a")
    model.release.set()
    picker = await bench.picker()
    client = await bench.client(await bench.envoy())
    response = await client.post("/stream", content=b"question")
    assert response.text == "chunk 0\nchunk 1\nchunk 2\n"
    await picker.last.over.wait()
    assert picker.last.kinds == ["request_headers", "request_body", "response_headers"]
    assert picker.last.request_body == len(b"question")


async def test_the_picker_s_stream_stays_open_until_the_response_ends(bench: Bench) -> None:
    model = await bench.model("a")
    picker = await bench.picker()
    client = await bench.client(await bench.envoy())
    async with client.stream("POST", "/stream", content=b"x") as response:
        lines = response.aiter_lines()
        assert await anext(lines) == "chunk 0"
        await wait_until(lambda: "response_headers" in picker.last.kinds)
        assert not picker.last.over.is_set()
        model.release.set()
        assert [line async for line in lines] == ["chunk 1", "chunk 2"]
    await picker.last.over.wait()


async def test_the_picker_s_stream_ends_when_the_client_leaves(bench: Bench) -> None:
    await bench.model("a")
    picker = await bench.picker()
    client = await bench.client(await bench.envoy())
    async with client.stream("POST", "/stream", content=b"x") as response:
        assert await anext(response.aiter_lines()) == "chunk 0"
    await client.aclose()
    await picker.last.over.wait()
    assert picker.last.end in ("half-close", "cancelled")


async def test_a_picker_may_ask_for_the_body_of_one_response(bench: Bench) -> None:
    model = await bench.model("a")
    model.release.set()
    picker = await bench.picker(Script(destinations=[model.authority], want_response=True))
    client = await bench.client(await bench.envoy())
    response = await client.post("/stream", content=b"x")
    await picker.last.over.wait()
    assert picker.last.kinds == ["request_headers", "request_body", "response_headers", "response_body"]
    assert picker.last.response_body == response.content == b"chunk 0\nchunk 1\nchunk 2\n"
    picker.script.want_response = False
    await client.post("/stream", content=b"x")
    await picker.last.over.wait()
    assert "response_body" not in picker.last.kinds


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


async def test_a_server_s_death_in_the_middle_is_an_error_for_the_client(bench: Bench) -> None:
    """The response has begun: nobody can take it over."""
    model = await bench.model("a")
    await bench.picker()
    client = await bench.client(await bench.envoy())
    async with client.stream("POST", "/stream", content=b"x") as response:
        lines = response.aiter_lines()
        assert await anext(lines) == "chunk 0"
        for transport in model.connections:
            transport.abort()
        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in lines:
                pass
