"""What travels over HTTP: bodies, headers, limits, aborts, the metrics page."""

import asyncio
import hashlib
import json
import os
from typing import Any

import aiohttp
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.simulator.app import Simulator
from services.simulator.settings import EngineType, SimulatorSettings
from shared.config.problems import Invalid
from tests.waiting import TIMEOUT, eventually


async def test_what_arrived_can_be_told(client: httpx.AsyncClient) -> None:
    """By `/echo`, and by an answer where that is asked for."""
    body = os.urandom(300_000)

    async def pieces() -> Any:
        for start in range(0, len(body), 7919):
            yield body[start : start + 7919]

    answer = await client.post("/echo", content=pieces(), headers={"content-type": "x/y", "x-own": "abc"})
    assert (answer.content, answer.headers["content-type"]) == (body, "x/y")
    asked = json.dumps({"model": "base", "prompt": "x" * 1000, "stream": True}, indent=3).encode()
    response = await client.post("/v1/completions", content=asked, headers={"x-simulator-echo": "true", "x-own": "abc"})
    assert response.headers["x-simulator-body-bytes"] == str(len(asked))
    for sent, each in ((body, answer), (asked, response)):
        assert each.headers["x-simulator-body-sha256"] == hashlib.sha256(sent).hexdigest()
        assert ["x-own", "abc"] in json.loads(each.headers["x-simulator-headers"])


async def test_a_body_beyond_the_limit_gets_413() -> None:
    async with (
        Simulator(SimulatorSettings(port=0, max_body=1000)) as running,
        httpx.AsyncClient(base_url=running.url, timeout=TIMEOUT) as client,
    ):
        for path in ("/v1/completions", "/echo"):
            answer = await client.post(path, content=b"x" * 2000)
            assert answer.status_code == 413
            assert answer.json()["error"]["message"] == "The body has more than 1000 bytes."


async def test_a_full_server_refuses_with_503() -> None:
    settings = SimulatorSettings(port=0, slots=1, max_requests=1)
    async with Simulator(settings) as running, httpx.AsyncClient(base_url=running.url, timeout=TIMEOUT) as client:
        body = {"model": "simulated", "prompt": "x", "n": 2}
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["type"] == "ServiceUnavailableError"
        assert running.server.counts.refused == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_slot_and_blocks(server: Simulator, stream: bool) -> None:
    body = {"model": "base", "prompt": "x" * 400, "max_tokens": 20_000, "ignore_eos": True, "stream": stream}
    state = server.server.state
    async with aiohttp.ClientSession() as session:
        call = asyncio.ensure_future(session.post(f"{server.url}/v1/completions", json=body))
        await eventually(lambda: state()["running"] == 1)
        assert state()["kv_used"] >= 7
        if stream:
            response = await call
            await response.content.readline()
            response.close()
        call.cancel()
    await eventually(lambda: state()["running"] == 0)
    assert (state()["kv_used"], state()["aborted"], state()["finished"]["abort"]) == (0, 1, 1)
    assert state()["answered"] == 0


@pytest.mark.parametrize("engine", EngineType)
async def test_every_engine_shows_its_page_where_the_real_one_does(engine: EngineType) -> None:
    async with (
        Simulator(SimulatorSettings(port=0, engine=engine)) as running,
        httpx.AsyncClient(base_url=running.url, timeout=TIMEOUT) as client,
    ):
        answer = await client.get(engine.metrics_path)
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert list(text_string_to_metric_families(answer.text))
        assert (await client.get("/health")).status_code == (await client.get("/version")).status_code == 200
        other = {"/metrics", "/prometheus/metrics"} - {engine.metrics_path}
        assert (await client.get(other.pop())).status_code == 404
        assert running.server.counts.scrapes == 1


async def test_a_stopping_server_cuts_off_what_takes_too_long() -> None:
    running = Simulator(SimulatorSettings(port=0, drain_timeout=0.1))
    await running.start()
    async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        body = {"model": "simulated", "prompt": "x", "max_tokens": 60_000, "ignore_eos": True}
        call = asyncio.ensure_future(client.post("/v1/completions", json=body))
        await eventually(lambda: running.server.state()["running"] == 1)
        await running.stop()
        with pytest.raises(httpx.RemoteProtocolError):
            await call
    assert running.server.engine.state().running == 0


async def test_a_port_that_is_taken_is_named(server: Simulator) -> None:
    second = Simulator(SimulatorSettings(port=server.port))
    with pytest.raises(Invalid, match=rf"port: cannot listen on 127.0.0.1:{server.port}"):
        await second.start()
