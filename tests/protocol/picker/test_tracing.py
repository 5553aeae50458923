"""Spans of a picker's process, as an OTLP receiver gets them, of requests through real gRPC."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from aiohttp import web
from msgspec import Struct

from services.picker.transport.ext_proc import METHOD
from tests.nats import NatsServer
from tests.protocol.collector.harness import Owner, endpoint
from tests.protocol.process import TierProcess
from tests.unit.services.picker.extproc.proxy import (
    LEAN,
    Answer,
    body,
    headers,
    read,
    response_body,
    response_headers,
)
from tests.waiting import eventually

SERVER = 2
"""`SPAN_KIND_SERVER` of OTLP."""
UNSET, ERROR = 0, 2
"""OTLP's `STATUS_CODE_…`."""
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "the prompt that nobody may see"
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": SECRET}]}).encode()
USAGE = b'{"usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}}'
DOCUMENT = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
- {type: active-request-scorer}
- {type: decode-filter}
- {type: max-score-picker}
saturationDetector: {pluginRef: concurrency-detector}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer, weight: 2}, {pluginRef: max-score-picker}]
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
"""
SCHEDULED = ["prepare", "admit", "schedule", "filter", "scorer", "picker"]


class Picker(TierProcess):
    tier = "picker"


class Span(Struct):
    """What the receiver knows of one."""

    raw: Any
    resource: Mapping[str, Any]

    @property
    def attributes(self) -> Mapping[str, Any]:
        return values(self.raw["attributes"])

    @property
    def events(self) -> list[str]:
        return [event["name"].removeprefix("pointsman.") for event in self.raw["events"]]

    def event(self, name: str) -> Mapping[str, Any]:
        (found,) = [values(event["attributes"]) for event in self.raw["events"] if event["name"] == f"pointsman.{name}"]
        return {key.removeprefix("pointsman."): value for key, value in found.items()}


READ = {"stringValue": str, "boolValue": bool, "intValue": int, "doubleValue": float}


def values(pairs: Any) -> dict[str, Any]:
    return {pair["key"]: READ[kind](value) for pair in pairs for kind, value in pair["value"].items()}


class Receiver:
    """OTLP over HTTP on a port of this machine."""

    def __init__(self) -> None:
        self.spans: dict[str, Span] = {}
        """By request id."""
        self.texts: list[bytes] = []

    async def _take(self, request: web.Request) -> web.Response:
        self.texts.append(await request.read())
        assert request.content_type == "application/json"
        for group in json.loads(self.texts[-1])["resourceSpans"]:
            for scope in group["scopeSpans"]:
                for raw in scope["spans"]:
                    span = Span(raw, values(group["resource"]["attributes"]))
                    self.spans[span.attributes["gen_ai.request.id"]] = span
        return web.json_response({})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def get(self, id: str) -> Span:
        await eventually(lambda: id in self.spans, lambda: sorted(self.spans))
        return self.spans[id]


class Exchange:
    """One request, message by message."""

    def __init__(self, channel: Any, id: str, **more: str) -> None:
        self.id, self._more = id, more
        self._stream = channel.stream_stream(METHOD)()

    async def say(self, message: Any) -> Answer:
        await self._stream.write(message.SerializeToString())
        while not (answer := read(await self._stream.read())).phase:
            pass  # the proxy is asked to be patient
        return answer

    async def ask(self, data: bytes = CHAT) -> Answer:
        """The answer to the body."""
        await self.say(headers(self.shown(), modes=LEAN))
        return await self.say(body(data, end=True))

    def shown(self) -> dict[str, str]:
        more = {name.replace("_", "-"): value for name, value in self._more.items()}
        return {":method": "POST", ":path": "/v1/chat/completions?key=1", "x-request-id": self.id, **more}

    async def respond(self, status: int = 200) -> None:
        shown = response_headers(status, served="127.0.0.1:8000")
        shown.response_headers.headers.headers.add(key="content-type", raw_value=b"application/json")
        await self.say(shown)
        await self.say(response_body(USAGE, end=True))
        await self.end()

    async def end(self) -> None:
        await self._stream.done_writing()
        await self._stream.code()


class Traced(Struct):
    """A picker that traces, and who gets its spans."""

    channel: Any
    receiver: Receiver
    process: Picker

    def request(self, id: str, **more: str) -> Exchange:
        return Exchange(self.channel, id, **more)


@asynccontextmanager
async def tracing(
    nats: NatsServer, owner: Owner, folder: Path, monkeypatch: pytest.MonkeyPatch, **variables: str
) -> AsyncIterator[Traced]:
    await owner.publish([endpoint("a", 8000)], DOCUMENT)
    receiver = Receiver()
    async with receiver.serving() as url:
        always = {"OTEL_TRACES_SAMPLER": "parentbased_always_on", "OTEL_BSP_SCHEDULE_DELAY": "50"}
        for name, value in {"OTEL_EXPORTER_OTLP_ENDPOINT": url, **always, **variables}.items():
            monkeypatch.setenv(name, value)
        ports = ("--grpc-host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--secure-serving=false")
        process = Picker(nats.url, "p", folder / "log", *ports, "--drain-delay=0s", "--tracing=true")
        try:
            await process.ready()

            async def configured() -> bool:
                return bool((await process.state())["config"]["origin"] == "test")

            await eventually(configured)
            address = f"127.0.0.1:{(await process.state())['grpc_port']}"
            async with grpc.aio.insecure_channel(address) as channel:
                yield Traced(channel, receiver, process)
        finally:
            process.kill()
    assert not any(SECRET.encode() in text for text in receiver.texts)


@pytest.fixture
async def traced(
    nats: NatsServer, owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Traced]:
    async with tracing(nats, owner, tmp_path, monkeypatch) as started:
        yield started


def ids(answer: Answer) -> Sequence[str]:
    """Trace, span and flags that the model server is told."""
    version, *found = answer.set_headers["traceparent"].split("-")
    assert version == "00"
    return found


async def test_a_span_continues_the_clients_trace_and_is_the_model_servers_parent(traced: Traced) -> None:
    exchange = traced.request("continued", traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="vendor=1")
    trace, span_id, flags = ids(await exchange.ask())
    await exchange.respond()
    span = await traced.receiver.get("continued")
    raw = span.raw
    assert (raw["name"], raw["kind"], raw["traceState"]) == ("gateway.request", SERVER, "vendor=1")
    assert (raw["traceId"], raw["spanId"], raw["parentSpanId"]) == (trace, span_id, PARENT)
    assert (trace, flags) == (TRACE, "01")
    assert span.resource["service.name"] == "pointsman-picker"
    assert span.resource["service.instance.id"] == "p"
    expected = {
        "http.request.method": "POST",
        "url.path": "/v1/chat/completions",
        "http.request.body.size": len(CHAT),
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": 8000,
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 5,
        "pointsman.endpoint": "default/a",
        "pointsman.served_by": "first choice",
    }
    assert expected.items() <= span.attributes.items()
    assert span.events == [*SCHEDULED, "respond", "first_chunk"]
    scorer = span.event("scorer")
    assert (scorer["profile"], scorer["plugin"], scorer["weight"]) == ("default", "active-request-scorer", 2.0)
    assert 0 <= scorer["score"] <= 1
    assert span.event("filter")["kept"] == 1
    times = [raw["startTimeUnixNano"], *(event["timeUnixNano"] for event in raw["events"]), raw["endTimeUnixNano"]]
    assert times == sorted(times, key=int)
    assert raw["status"]["code"] == UNSET


async def test_a_request_that_isnt_sampled_has_no_span_and_the_model_server_learns_of_it(traced: Traced) -> None:
    unsampled = traced.request("unsampled", traceparent=f"00-{TRACE}-{PARENT}-00")
    trace, _, flags = ids(await unsampled.ask())
    assert (trace, flags) == (TRACE, "00")
    await unsampled.respond()
    for id, more in (("root", {}), ("malformed", {"traceparent": "00-junk"})):
        exchange = traced.request(id, **more)
        trace, _, flags = ids(await exchange.ask())
        assert trace != TRACE
        assert int(flags, 16) & 1
        await exchange.respond()
        assert not (await traced.receiver.get(id)).raw["parentSpanId"]
    assert "unsampled" not in traced.receiver.spans  # the spans of earlier requests have been sent before


ENDS: dict[str, tuple[bytes, dict[str, str], int, dict[str, Any]]] = {
    "refused without a model": (b'{"messages": []}', {}, 0, {"http.response.status_code": 400}),
    "refused by its length": (
        CHAT,
        {"content_length": "1000000000"},
        0,
        {"http.response.status_code": 413, "url.path": "/v1/chat/completions"},
    ),
    "an error of the model server": (CHAT, {}, 500, {"http.response.status_code": 500, "error.type": "500"}),
    "given up by its client": (CHAT, {}, 0, {"pointsman.aborted": True, "server.port": 8000}),
}


async def test_how_a_request_ends(traced: Traced) -> None:
    for id, (data, more, status, expected) in ENDS.items():
        exchange = traced.request(id, **more)
        if "content_length" in more:
            await exchange.say(headers(exchange.shown(), modes=LEAN))
        else:
            await exchange.ask(data)
        await (exchange.respond(status) if status else exchange.end())
        span = await traced.receiver.get(id)
        assert expected.items() <= span.attributes.items(), id
        assert span.raw["status"]["code"] == (ERROR if status >= 500 else UNSET), id


async def test_a_wait_in_the_queue_is_an_event(traced: Traced) -> None:
    first, second = traced.request("first"), traced.request("second", x_gateway_inference_fairness_id="tenant")
    await first.ask()
    waiting = asyncio.ensure_future(second.ask())
    state: dict[str, Any] = {}

    async def queued() -> bool:
        state.update(await traced.process.state())
        return any(band["requests"] for band in state["flow_control"]["bands"])

    await eventually(queued, lambda: state)
    await first.respond()
    await waiting
    await second.respond()
    admitted = (await traced.receiver.get("second")).event("admit")
    assert (admitted["flow"], admitted["band"]) == ("tenant", 0)
    assert admitted["seconds"] > 0
    assert admitted["released_by"] == "the end of another request"


async def test_what_is_left_is_exported_at_the_end(
    nats: NatsServer, owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = {"OTEL_BSP_SCHEDULE_DELAY": "3600000", "OTEL_SERVICE_NAME": "my-picker"}
    async with tracing(nats, owner, tmp_path, monkeypatch, **later) as traced:
        exchange = traced.request("last")
        await exchange.ask()
        await exchange.respond()
        assert await traced.process.stop() == 0
        assert traced.receiver.spans["last"].resource["service.name"] == "my-picker"
