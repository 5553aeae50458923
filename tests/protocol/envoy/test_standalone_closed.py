"""What clients can do behind deploy/envoy's standalone configurations while no picker answers, and which paths of model
servers they reach in a closed pool."""

import asyncio
from pathlib import Path

import h2.connection
import h2.events
import pytest

from pointsman.local.envoy import STANDALONE, STANDALONE_CLOSED
from services.picker.metadata import DESTINATION, HOSTS, SERVED, SUBSET
from services.picker.parsers.anthropic import AnthropicParser
from services.picker.parsers.openai import OpenAIParser
from services.picker.parsers.vllm_http import VllmHttpParser
from tests.protocol.envoy.conftest import Bench

pytestmark = pytest.mark.asyncio(loop_scope="module")

FORGED = dict.fromkeys((DESTINATION, SERVED, SUBSET, *HOSTS), "192.0.2.1:9")


@pytest.mark.parametrize("configuration", [STANDALONE, STANDALONE_CLOSED], ids=lambda path: path.stem)
async def test_without_a_picker_a_client_chooses_nothing(bench: Bench, configuration: Path) -> None:
    model = await bench.model("a")
    bench.address()  # of a picker that never comes
    client = await bench.client(await bench.envoy(configuration))
    response = await client.post("/v1/chat/completions", content=b"{}", headers=FORGED)
    if configuration is STANDALONE:
        assert response.status_code == 200
        assert not FORGED.keys() & dict(model.received[-1].headers).keys()
    else:
        assert response.status_code == 503
        assert response.json()["error"]["message"] == "the endpoint picker gave no answer"
        assert not model.received


async def test_clients_of_a_closed_pool_reach_the_paths_of_inference_apis(bench: Bench) -> None:
    """Whatever the picker says: for all other paths it isn't asked."""
    model, picker = await bench.model("a"), await bench.picker()
    client = await bench.client(await bench.envoy(STANDALONE_CLOSED))
    for suffix in (*OpenAIParser.SUFFIXES, *AnthropicParser.SUFFIXES):
        assert (await client.post(f"/v1{suffix}?beta=true", content=b"{}")).status_code == 200, suffix
    for path in VllmHttpParser.SUFFIXES:
        assert (await client.post(path, content=b"{}")).status_code == 200, path
    for path in ("/v1/models", "/health"):
        assert (await client.get(path)).status_code == 200, path
    model.received.clear()
    picker.conversations.clear()
    for path in (
        *("/", "/metrics", "/flush_cache", "/v1/load_lora_adapter", "/v1/models/m", "/v1/chat", "/health/x"),
        *("/v1/%6dodels", "/flush_cache?/v1/models", "/flush_cache%3F/v1/models", "/V1/models", "/v1/modelsx"),
        *("/vllm.grpc.engine.VllmEngine/Generate", "/x/v1/models"),
    ):
        response = await client.post(path, content=b"{}")
        assert (response.status_code, response.headers["content-type"]) == (404, "application/json"), path
        error = {"message": "this path isn't served", "type": "invalid_request_error", "param": None, "code": 404}
        assert response.json() == {"error": error}
    error = {"type": "not_found_error", "message": "this path isn't served"}
    for path in ("/v1/messages/batches", "/anthropic/v1/messages"):
        response = await client.post(path, content=b"{}")
        assert (response.status_code, response.json()) == (404, {"type": "error", "error": error})
    assert (model.received, picker.conversations) == ([], [])


@pytest.mark.parametrize("configuration", [STANDALONE, STANDALONE_CLOSED], ids=lambda path: path.stem)
async def test_a_picker_is_asked_about_a_request_with_trailers_and_no_body(bench: Bench, configuration: Path) -> None:
    """Otherwise, the request goes to any server, whatever its path and its model."""
    model, picker = await bench.model("a"), await bench.picker()
    envoy = await bench.envoy(configuration)
    await _post_with_trailers(envoy.places.port, "/v1/completions")
    assert picker.last.kinds[:2] == ["request_headers", "request_trailers"]
    assert len(model.received) == 1


async def _post_with_trailers(port: int, path: str) -> None:
    """Over HTTP/2, without a DATA frame; the response is awaited."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = h2.connection.H2Connection()
    client.initiate_connection()
    client.send_headers(1, [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "a")])
    client.send_headers(1, [("x-digest", "d")], end_stream=True)
    ended = False
    while not ended:
        writer.write(client.data_to_send())
        ended = any(isinstance(event, h2.events.StreamEnded) for event in client.receive_data(await reader.read(2**16)))
    writer.close()
