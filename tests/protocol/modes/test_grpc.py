"""gRPC calls to vLLM's service through Envoy, as we and as gateways configure it, and a real picker.

The servers are the test's own; Envoy speaks HTTP/2 to them.
"""

import asyncio
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from msgspec import Struct

from pointsman.local.envoy import GATEWAY, STANDALONE, Envoy, load
from tests.protocol.envoy.conftest import unhurried
from tests.protocol.modes.conftest import Document, System, named, system
from tests.protocol.modes.grpc_server import FAIL, HOLD, PIECES, SERVICE, SIZE, TOKENS, GrpcServer, embedding, piece
from tests.protocol.system.conftest import decision, nothing_in_flight
from tests.unit.services.picker.parsers.vllm_schema import message
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIGURATION = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: vllmgrpc-parser
- type: openai-parser
- type: random-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: random-picker
requestHandler:
  parsers:
  - pluginRef: vllmgrpc-parser
  - pluginRef: openai-parser
"""
Metadata: TypeAlias = Mapping[str, str]
NOTHING: Metadata = {}
ENVOYS = {"ours": STANDALONE, "gateway": GATEWAY}
LARGE = 300_000
LIMIT = 2**20
"""Bytes of a body that the picker takes."""


class Pool(Struct, frozen=True):
    """What runs."""

    system: System
    servers: dict[str, GrpcServer]
    envoys: dict[str, Envoy]

    @property
    def received(self) -> int:
        """Calls that have reached a server."""
        return sum(len(server.received) for server in self.servers.values())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    async with AsyncExitStack() as life:
        servers = {name: await life.enter_async_context(GrpcServer(name)) for name in ("model-1", "model-2")}
        authorities = {name: server.authority for name, server in servers.items()}
        directory = tmp_path_factory.mktemp("grpc")
        started = await life.enter_async_context(
            system(directory, authorities, CONFIGURATION, max_request_body=str(LIMIT))
        )
        envoys = {
            name: await started.envoy(name, _speaking_http2(load(unhurried(path, directory))))
            for name, path in ENVOYS.items()
        }
        yield Pool(started, servers, envoys)


def _speaking_http2(document: Document) -> Document:
    """With HTTP/2 to the model servers, which gRPC needs."""
    named(document, "clusters", "model-servers")["typed_extension_protocol_options"] = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    return document


class Client:
    """Calls by their bytes. Each has an id of its own, by which its decision is found."""

    def __init__(self, pool: Pool, envoy: str, channel: Any) -> None:
        self.envoy = envoy
        """Which one it calls."""
        self._pool = pool
        self._channel = channel
        self._id = ""

    def embed(self, data: bytes, metadata: Metadata = NOTHING, method: str = f"/{SERVICE}/Embed") -> Any:
        """A unary call."""
        return self._channel.unary_unary(method)(data, metadata=self._metadata(metadata), timeout=TIMEOUT)

    def generate(self, data: bytes, metadata: Metadata = NOTHING) -> Any:
        """A call whose answer is streamed."""
        call = self._channel.unary_stream(f"/{SERVICE}/Generate")
        return call(data, metadata=self._metadata(metadata), timeout=TIMEOUT)

    def _metadata(self, metadata: Metadata) -> grpc.aio.Metadata:
        self._id = str(uuid.uuid4())
        return grpc.aio.Metadata(("x-request-id", self._id), *metadata.items())

    async def decision(self) -> dict[str, Any]:
        """On the last call."""
        return await decision(self._pool.system.stack.pickers, self._id)

    async def went_as_picked(self, call: Any, method: str, data: bytes) -> dict[str, Any]:
        """Fails unless the server that answered the last call was picked, and got this; the decision."""
        made = await self.decision()
        served = dict(await call.initial_metadata())["x-served-by"]
        assert made["endpoint"] == f"default/{served}"
        trailers = dict(await call.trailing_metadata())
        assert (trailers["x-served-last-by"], trailers["x-bytes"]) == (served, str(len(data)))
        assert self._pool.servers[served].received[-1] == (method, data)
        assert await call.code() is grpc.StatusCode.OK
        return made


@pytest_asyncio.fixture(params=list(ENVOYS), loop_scope="module")
async def client(request: pytest.FixtureRequest, pool: Pool) -> AsyncIterator[Client]:
    """A client of one of the Envoys. After each test no picker has anything in flight."""
    address = pool.envoys[request.param].url.removeprefix("http://")
    async with grpc.aio.insecure_channel(address) as channel:
        yield Client(pool, request.param, channel)
    await nothing_in_flight(pool.system.stack.pickers)


def _generate(size: int = 40, **fields: Any) -> bytes:
    data: bytes = message("GenerateRequest", request_id="r", text="x" * size, **fields).SerializeToString()
    return data


def _embed(tokens: int = 10) -> bytes:
    ids = {"input_ids": range(tokens)}
    data: bytes = message("EmbedRequest", request_id="r", tokenized=ids).SerializeToString()
    return data


@pytest.mark.parametrize("size", [40, LARGE], ids=["small", "large"])
async def test_calls_go_as_picked_byte_for_byte_in_both_directions_and_their_tokens_are_counted(
    pool: Pool, client: Client, size: int
) -> None:
    """Our Envoy is asked for the responses."""
    counts = [await _tokens(pool)]
    data = _embed(size // 4)
    call = client.embed(data, {SIZE: str(size)})
    assert await call == embedding(size)
    made = await client.went_as_picked(call, "Embed", data)
    assert (made["api"], made["prompt_bytes"]) == ("embeddings", size)
    await nothing_in_flight(pool.system.stack.pickers)
    counts.append(await _tokens(pool))
    data = _generate(size, stream=True, sampling_params={"max_tokens": 5})
    call = client.generate(data, {SIZE: str(size)})
    assert [message async for message in call] == [piece(number, size) for number in range(PIECES)]
    made = await client.went_as_picked(call, "Generate", data)
    assert (made["api"], made["stream"], made["prompt_bytes"]) == ("generate", True, size)
    await nothing_in_flight(pool.system.stack.pickers)
    counts.append(await _tokens(pool))
    assert counts[1] - counts[0] == Counter(prompt_tokens=TOKENS["prompt_tokens"])
    assert counts[2] - counts[1] == Counter(TOKENS)


async def _tokens(pool: Pool) -> Counter[str]:
    """Tokens that the picker has counted, by the names that the service has for them."""
    [picker] = pool.system.stack.pickers
    page, found = await picker.metrics(), Counter[str]()
    for name, series in (("prompt", "input"), ("completion", "output"), ("cached", "cached")):
        values = re.findall(rf"^llm_d_epp_request_{series}_tokens_sum\{{.*\}} (.*)$", page, re.MULTILINE)
        found[f"{name}_tokens"] = sum(int(float(value)) for value in values)
    return found


async def test_a_call_that_nobody_reads_goes_as_picked(client: Client) -> None:
    data = b"no message of anything"
    call = client.embed(data, method=f"/{SERVICE}/HealthCheck")
    assert await call == data
    assert (await client.went_as_picked(call, "HealthCheck", data))["prompt_bytes"] == 0


async def test_a_streamed_answer_comes_while_it_is_made_and_counts_until_its_end(pool: Pool, client: Client) -> None:
    call = client.generate(_generate(), {HOLD: "yes"})
    for _ in range(PIECES - 1):
        assert await call.read()
    [picker] = pool.system.stack.pickers
    assert sum(endpoint["inflight"]["own_requests"] for endpoint in (await picker.state())["endpoints"]) == 1
    _release(pool)
    assert await call.read()
    assert await call.read() is grpc.aio.EOF  # type: ignore[attr-defined]  # grpc-stubs is older
    assert await call.code() is grpc.StatusCode.OK


async def _error(call: Any) -> Any:
    """The error that a client gets of a call, whichever way it reads."""
    answer = call.read() if hasattr(call, "read") else call
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answer
    return caught.value


async def test_errors_reach_the_client_whether_before_or_after_messages(client: Client) -> None:
    for call in (client.embed(_embed(), {FAIL: "first"}), client.generate(_generate(), {FAIL: "first"})):
        error = await _error(call)
        status = (error.code(), error.details())
        assert status == (grpc.StatusCode.FAILED_PRECONDITION, "the engine isn't there: 50 % loaded\n")
    call = client.generate(_generate(), {FAIL: "last"})
    for _ in range(PIECES):
        assert await call.read()
    error = await _error(call)
    assert (error.code(), error.details()) == (grpc.StatusCode.ABORTED, "the engine has stopped")


REFUSED: dict[str, tuple[str, bytes, grpc.StatusCode, str]] = {
    "unreadable": ("generate", b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT, "the GenerateRequest can't be read"),
    "nothing in it": ("embed", b"", grpc.StatusCode.INVALID_ARGUMENT, "tokenized is missing"),
    "too large": ("generate", _generate(LIMIT + 1), grpc.StatusCode.RESOURCE_EXHAUSTED, f"the limit of {LIMIT} bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_message_that_cant_be_taken_is_refused(pool: Pool, client: Client, case: str) -> None:
    method, data, code, says = REFUSED[case]
    before = pool.received
    error = await _error(getattr(client, method)(data))
    assert error.code() is code
    assert says in error.details()
    assert pool.received == before


def _release(pool: Pool) -> None:
    """Let the calls end that are held, and hold those that come."""
    for server in pool.servers.values():
        server.release.set()
        server.release = asyncio.Event()
