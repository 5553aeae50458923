"""Responses that a picker observes behind our Envoy, and a picker that dies or hangs meanwhile: clients lose nothing.

The picker, NATS, the watcher and Envoy are real; the model server is the test's own, so that it decides when a response
goes on.
"""

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from pointsman.local.envoy import STANDALONE, Envoy, load
from tests.protocol.envoy.conftest import unhurried
from tests.protocol.modes.conftest import System, system
from tests.protocol.modes.test_body_modes import CONFIGURATION
from tests.protocol.system.conftest import nothing_in_flight
from tests.waiting import eventually

PATH = "/v1/chat/completions"
EVENTS = 400
STREAMS = 12
USAGE = {"prompt_tokens": 11, "completion_tokens": EVENTS, "total_tokens": 11 + EVENTS}


def event(at: int) -> bytes:
    usage = {"usage": USAGE} if at == EVENTS - 1 else {}
    return b"data: %s\n\n" % json.dumps({"model": "m", "at": at, "padding": "x" * 200, **usage}).encode()


STREAM = b"".join(event(at) for at in range(EVENTS)) + b"data: [DONE]\n\n"
DOCUMENT = json.dumps({"model": "m", "padding": "x" * 20_000, "usage": USAGE}).encode()
LONG = json.dumps({"model": "m", "padding": "x" * 1_000_000, "usage": USAGE}).encode()


MODEL = '{model_name="m",target_model_name="m"}'


class Server:
    """Streams events, a few at a time, or sends a whole answer in two halves; waits for `release` in the middle."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.release.set()
        self.halfway = 0
        """Responses of which a half is sent."""
        self.sent = 0
        """Responses that are sent to their end."""

    async def __aenter__(self) -> "Server":
        app = web.Application()
        app.router.add_post(PATH, self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.authority = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.release.set()
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if asked.get("stream"):
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            pieces = [event(at) for at in range(EVENTS)] + [b"data: [DONE]\n\n"]
        else:
            text = {"short": DOCUMENT, "long": LONG, "compressed": gzip.compress(LONG)}[asked["answer"]]
            headers = {"content-type": "application/json", "content-length": str(len(text))}
            if asked["answer"] == "compressed":
                headers["content-encoding"] = "gzip"
            response = web.StreamResponse(headers=headers)
            pieces = [text[: len(text) // 2], text[len(text) // 2 :]]
        await response.prepare(request)
        for at, piece in enumerate(pieces):
            if at == len(pieces) // 2:
                self.halfway += 1
                await self.release.wait()
            await response.write(piece)
            if at % 5 == 0:
                await asyncio.sleep(0.001)
        await response.write_eof()
        self.sent += 1
        return response


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server() as started:
        yield started


@pytest.fixture
def fault() -> str:
    """What happens to the picker: nothing, unless the test has a parameter of this name."""
    return ""


@pytest.fixture
async def running(tmp_path: Path, server: Server, fault: str) -> AsyncIterator[tuple[System, Envoy]]:
    """Envoy gives up a picker that stands still only where that is the fault."""
    async with system(tmp_path, {"model": server.authority}, CONFIGURATION, drain_timeout="500ms") as started:
        configuration = STANDALONE if fault == "hangs" else unhurried(STANDALONE, tmp_path)
        yield started, await started.envoy("ours", load(configuration))


ANSWERS: dict[str, tuple[dict[str, object], bytes]] = {
    "a stream": ({"stream": True}, STREAM),
    "a short answer": ({"answer": "short"}, DOCUMENT),
    "a long answer": ({"answer": "long"}, LONG),
    "a compressed answer": ({"answer": "compressed"}, LONG),
}
"""What is asked, and what the client has to get."""


async def _get(client: httpx.AsyncClient, asked: Mapping[str, object]) -> httpx.Response:
    return await client.post(PATH, json={"model": "m", "messages": [{"role": "user", "content": "x"}], **asked})


def _client(envoy: Envoy) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=envoy.url, timeout=60, limits=httpx.Limits(), trust_env=False)


async def _sample(system: System, series: str) -> float:
    """What the picker's page says of a series; 0 where it has none."""
    found = re.search(rf"^{re.escape(series)} (.*)$", await system.stack.pickers[0].metrics(), re.MULTILINE)
    return float(found[1]) if found else 0.0


async def _observes(system: System, streams: int) -> bool:
    """Whether the picker has got pieces of so many streams."""
    return await _sample(system, f"llm_d_epp_request_ttft_seconds_count{MODEL}") == streams


FAULTS = ["killed", "hangs", "ends its drain"]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_picker_that_goes_while_it_observes_responses_costs_no_byte(
    running: tuple[System, Envoy], server: Server, fault: str
) -> None:
    """It goes while pieces of responses wait in Envoy for its answers."""
    system, envoy = running
    [picker] = system.stack.pickers
    asked = [answer for answer in ANSWERS.values() for _ in range(STREAMS)]
    server.release.clear()
    async with _client(envoy) as client:
        reading = [asyncio.create_task(_get(client, ask)) for ask, _ in asked]
        await eventually(lambda: server.halfway == len(asked), "a half of every response")
        await eventually(lambda: _observes(system, STREAMS), "the first pieces of all streams at the picker")
        if fault == "ends its drain":
            await picker.stop()
            server.release.set()
        else:
            picker.pause()
            server.release.set()
            if fault == "killed":
                await eventually(lambda: server.sent >= STREAMS, "responses that wait in Envoy")
                await picker.kill()
        answers = await asyncio.gather(*reading)
    if fault == "hangs":
        picker.resume()
    for answer, (_, expected) in zip(answers, asked, strict=True):
        assert answer.status_code == 200
        assert answer.content == expected


async def test_tokens_and_times_of_responses_are_known_behind_our_envoy(running: tuple[System, Envoy]) -> None:
    """And the responses reach their clients with the length that they have."""
    system, envoy = running
    async with _client(envoy) as client:
        for name, (ask, expected) in ANSWERS.items():
            answer = await _get(client, ask)
            assert answer.content == expected
            assert ("content-length" in answer.headers) is (name != "a stream")
    await nothing_in_flight(system.stack.pickers)
    seen = {
        "request_input_tokens_sum": 3 * USAGE["prompt_tokens"],
        "request_output_tokens_sum": 3 * USAGE["completion_tokens"],
        "request_ntpot_seconds_count": 3,
        "request_ttft_seconds_count": 1,
        "request_streaming_tpot_seconds_count": 1,
        "response_size_bytes_sum": len(STREAM) + len(DOCUMENT) + len(LONG),
    }
    assert {name: await _sample(system, f"llm_d_epp_{name}{MODEL}") for name in seen} == seen
    assert await _sample(system, 'pointsman_picker_responses_total{observation="observed"}') == 3
    compressed = await _sample(system, 'pointsman_picker_responses_total{observation="not_applicable"}')
    assert compressed == 1


async def test_of_a_share_of_responses_the_picker_says_how_many_it_observed(tmp_path: Path, server: Server) -> None:
    options = {"observe_responses": "0.5", "seed": "7"}
    async with system(tmp_path, {"model": server.authority}, CONFIGURATION, **options) as started:
        envoy = await started.envoy("ours", load(unhurried(STANDALONE, tmp_path)))
        async with _client(envoy) as client:
            for _ in range(40):
                assert (await _get(client, {"answer": "short"})).content == DOCUMENT
        await nothing_in_flight(started.stack.pickers)
        observed = await _sample(started, 'pointsman_picker_responses_total{observation="observed"}')
        assert 0 < observed < 40
        assert await _sample(started, 'pointsman_picker_responses_total{observation="left_out"}') == 40 - observed
        assert await _sample(started, f"llm_d_epp_request_input_tokens_count{MODEL}") == observed
        assert await _sample(started, "pointsman_picker_observe_responses_ratio") == 0.5
