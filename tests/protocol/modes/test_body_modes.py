"""Every body mode that a picker speaks, through Envoy: what it knows then of a request, and what becomes of the bytes.

One Envoy with a listener for each mode. It fails closed, so that a conversation which breaks is an error and not a
request that went round robin. The servers are the test's own, for the sake of trailers.
"""

import copy
import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from msgspec import Struct

from pointsman.local.envoy import STANDALONE, load
from tests.protocol.envoy.conftest import unhurried
from tests.protocol.http1 import Fields, Message, request
from tests.protocol.model_server import PADDING, TRAILERS, USAGE, ModelServer, answer_events, answer_whole
from tests.protocol.modes.conftest import Document, System, ext_proc, manager, named, system
from tests.protocol.system.conftest import decision, nothing_in_flight

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIGURATION = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: random-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: random-picker
"""
TARGET = "steady-and-longer"
RESOURCES = f"""\
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModelRewrite
metadata: {{name: assistant}}
spec:
  poolRef: {{group: inference.networking.k8s.io, kind: InferencePool, name: default}}
  rules:
  - matches: [{{model: {{type: Exact, value: assistant}}}}]
    targets: [{{modelRewrite: {TARGET}}}]
"""
PATH = "/v1/chat/completions"
SMALL, LARGE = 200, 300_000
PARTIAL = 65_536
"""Bytes after which Envoy shows what it has of a body, in mode BUFFERED_PARTIAL."""


class Modes(Struct, frozen=True):
    """Body modes of a listener."""

    request: str = "BUFFERED"
    response: str = "NONE"

    def __str__(self) -> str:
        return f"{self.request}/{self.response}"


ALL = ["BUFFERED", "BUFFERED_PARTIAL", "STREAMED", "NONE", "FULL_DUPLEX_STREAMED"]
REQUESTS = {mode: Modes(request=mode) for mode in ALL}
RESPONSES = {mode: Modes(response=mode) for mode in ALL}


class Pool(Struct, frozen=True):
    """What runs."""

    system: System
    servers: dict[str, ModelServer]
    ports: dict[Modes, int]

    def server(self, answer: Message) -> ModelServer:
        """Who answered."""
        return self.servers[answer.header("x-served-by")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    async with AsyncExitStack() as life:
        servers = {name: await life.enter_async_context(ModelServer(name)) for name in ("model-1", "model-2")}
        authorities = {name: server.authority for name, server in servers.items()}
        directory = tmp_path_factory.mktemp("modes")
        started = await life.enter_async_context(system(directory, authorities, CONFIGURATION, RESOURCES))
        every = dict.fromkeys([*REQUESTS.values(), *RESPONSES.values()])
        ports = {modes: started.ports.take(str(modes)) for modes in every}
        await started.envoy("modes", _document(ports, load(unhurried(STANDALONE, directory))))
        yield Pool(started, servers, ports)


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def _settled(pool: Pool) -> AsyncIterator[None]:
    """After each test no picker has anything in flight."""
    yield
    await nothing_in_flight(pool.system.stack.pickers)


def _document(ports: dict[Modes, int], document: Document) -> Document:
    """Our configuration with a listener for each pair of modes; trailers pass, and are shown."""
    pattern = named(document, "listeners", "gateway")
    for modes, port in ports.items():
        listener = copy.deepcopy(pattern)
        listener["name"] = str(modes)
        listener["address"] = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
        if "BUFFERED_PARTIAL" in (modes.request, modes.response):
            listener["per_connection_buffer_limit_bytes"] = PARTIAL
            for limited in (host := _host(listener), *host["routes"]):
                limited.pop("request_body_buffer_limit", None)
        manager(listener)["http_protocol_options"] = {"enable_trailers": True}
        if modes.request == "FULL_DUPLEX_STREAMED":  # with one, Envoy sends a body twice that trailers follow
            del _host(listener)["routes"][0]["route"]["retry_policy"]
        config = ext_proc(listener)
        config["failure_mode_allow"] = False
        config["processing_mode"] |= {
            "request_body_mode": modes.request,
            "request_trailer_mode": "SEND",
            "response_body_mode": modes.response,
        }
        document["static_resources"]["listeners"].append(listener)
    options = named(document, "clusters", "model-servers")["typed_extension_protocol_options"]
    explicit = options["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]["explicit_http_config"]
    explicit["http_protocol_options"] = {"enable_trailers": True}
    return document


def _host(listener: Document) -> Document:
    found: Document = manager(listener)["route_config"]["virtual_hosts"][0]
    return found


def _chat(model: str, size: int, **fields: Any) -> bytes:
    chat = {"model": model, "messages": [{"role": "user", "content": "x" * size}], **fields}
    return json.dumps(chat).encode()


async def _ask(
    pool: Pool, modes: Modes, body: bytes, headers: Fields | None = None, trailers: Fields | None = None
) -> Message:
    sent = [("content-type", "application/json"), *(headers or [])]
    return await request(pool.ports[modes], PATH, sent, body, trailers)


async def _went_as_picked(pool: Pool, answer: Message) -> dict[str, Any]:
    """Fails unless the server that answered is the one that was picked, by chance; the decision."""
    assert answer.status == 200, answer
    made = await decision(pool.system.stack.pickers, answer.header("x-request-id"))
    assert made["endpoint"] == f"default/{answer.header('x-served-by')}"
    return made


def _is_read(mode: str, size: int) -> bool:
    """Whether a picker sees the whole of a request's body."""
    if mode == "BUFFERED_PARTIAL":
        return size < PARTIAL
    return mode in ("BUFFERED", "FULL_DUPLEX_STREAMED")


@pytest.mark.parametrize("trailers", [None, [("x-digest", "d1"), ("x-other", "d2")]], ids=["no trailers", "trailers"])
@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("mode", ALL)
async def test_a_request_goes_as_picked_and_its_model_is_known_where_its_whole_body_is_shown(
    pool: Pool, mode: str, size: int, trailers: Fields | None
) -> None:
    """Where it isn't, the body passes byte for byte, with the client's model in it; in mode BUFFERED_PARTIAL nobody can
    tell before trailers whether it was whole. The server's own model stays in the response to a FULL_DUPLEX_STREAMED
    request here: after such a one Envoy isn't to be asked for a response's body."""
    read = _is_read(mode, size) and not (trailers and mode == "BUFFERED_PARTIAL")
    model = "plain" if trailers else "assistant"
    target = "plain" if trailers else TARGET
    body = _chat(model, size)
    answer = await _ask(pool, REQUESTS[mode], body, trailers=trailers)
    made = await _went_as_picked(pool, answer)
    assert made["model"] == (model if read else "")
    assert (made["prompt_bytes"] > size) is read
    arrived = pool.server(answer).received[-1]
    assert arrived.body == (body.replace(model.encode(), target.encode()) if read else body)
    assert arrived.trailers == (trailers or [])
    assert json.loads(answer.body)["model"] == (target if mode == "FULL_DUPLEX_STREAMED" else model)


@pytest.mark.parametrize("mode", ALL)
async def test_a_body_that_is_no_json_is_refused_where_it_is_shown(pool: Pool, mode: str) -> None:
    answer = await _ask(pool, REQUESTS[mode], b"no json at all")
    if _is_read(mode, 0):
        assert answer.status == 400
        assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
    else:
        await _went_as_picked(pool, answer)
        assert pool.server(answer).received[-1].body == b"no json at all"


@pytest.mark.parametrize("padding", [0, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("trailers", [False, True], ids=["no trailers", "trailers"])
@pytest.mark.parametrize("model", ["assistant", "plain"])
@pytest.mark.parametrize("mode", ALL)
async def test_a_response_has_the_clients_model_and_its_tokens_are_counted(
    pool: Pool, mode: str, model: str, trailers: bool, padding: int
) -> None:
    """In mode NONE the picker asks for the body of such a response, in mode BUFFERED_PARTIAL nothing is read. Where
    Envoy buffers one that changes, it gets a length, and with that HTTP/1.1 has no trailers."""
    read = mode != "BUFFERED_PARTIAL"
    served = TARGET if model == "assistant" else model
    for stream in (False, True):
        before = await _tokens(pool, model)
        asked = [(PADDING, str(padding)), *([(TRAILERS, "yes")] if trailers else [])]
        answer = await _ask(pool, RESPONSES[mode], _chat(model, 9, stream=stream), asked)
        await _went_as_picked(pool, answer)
        expected = model if read else served
        assert set(re.findall(rb'"model": "([^"]*)"', answer.body)) == {expected.encode()}
        sent = answer.body.replace(expected.encode(), served.encode())
        assert sent == (answer_events if stream else answer_whole)(served, padding)
        lost = mode == "BUFFERED" and served != model
        digest = [("x-digest", hashlib.sha256(sent).hexdigest())]
        assert answer.trailers == (digest if trailers and not lost else [])
        await nothing_in_flight(pool.system.stack.pickers)
        assert await _tokens(pool, model) - before == (USAGE["prompt_tokens"] if read else 0)


async def _tokens(pool: Pool, model: str) -> int:
    """Prompt tokens that the picker has counted of requests for a model."""
    [picker] = pool.system.stack.pickers
    pattern = rf'llm_d_epp_request_input_tokens_sum\{{[^}}]*model_name="{model}"[^}}]*\}} (.*)'
    return sum(int(float(value)) for value in re.findall(pattern, await picker.metrics()))
