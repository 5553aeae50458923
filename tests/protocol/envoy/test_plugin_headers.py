"""Headers that a plugin sets on responses, through Envoy: in every mode in which it shows the body, and beside one that
the picker requests."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from pointsman.local.envoy import STANDALONE, load
from services.picker.request import Headers
from services.picker.request_stream import RequestStream
from services.picker.scheduling.interfaces import CompletionProcessor, ResponseBodyProcessor, ResponseHeaderProcessor
from services.picker.scheduling.record import Exchange
from services.picker.transport.grpc_server import GrpcServer
from services.picker.transport.health import Health
from shared.model import split_host_port
from shared.plugin import Plugin, Role
from tests.ext_proc_server import ExtProcServer
from tests.protocol.envoy.conftest import Bench
from tests.protocol.model_server import USAGE
from tests.protocol.modes.conftest import ext_proc, named
from tests.unit.services.picker.hooked import World
from tests.unit.services.picker.world import endpoint, facts
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Session(ResponseHeaderProcessor, CompletionProcessor):
    TYPE = "session"
    ROLES = frozenset({Role.RESPONSE_HEADERS, Role.COMPLETION})

    ends: ClassVar[list[tuple[str, bool, int | None]]]

    def response_headers(self, exchange: Exchange, headers: Headers) -> Mapping[str, str]:
        return {"x-session-token": f"{exchange.endpoint} {headers.get('x-served-by')}", "x-served-by": "hidden"}

    def completed(self, exchange: Exchange) -> None:
        self.ends.append((exchange.endpoint, exchange.aborted, exchange.usage.completion))


class Meter(ResponseBodyProcessor):
    """Has the picker request bodies."""

    TYPE = "meter"

    def response_body(self, exchange: Exchange, *, first: bool, last: bool) -> None:
        pass


@pytest.mark.parametrize(
    ("request_mode", "response_mode", "plugins"),
    [
        ("BUFFERED", "NONE", [Session]),
        ("BUFFERED", "NONE", [Session, Meter]),
        ("BUFFERED", "STREAMED", [Session]),
        ("BUFFERED", "BUFFERED", [Session]),
        ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED", [Session]),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_gets_the_headers_that_a_plugin_sets(
    bench: Bench, tmp_path: Path, request_mode: str, response_mode: str, plugins: list[type[Plugin]], stream: bool
) -> None:
    model, at = await bench.model("a"), bench.address()
    host, port = split_host_port(model.authority)
    Session.ends = []
    world = World(*plugins)
    world.view.reset(facts(endpoint("a1", host, port or 0)))
    server = ExtProcServer(lambda: RequestStream(world.handler), port=at.port)
    health = GrpcServer(Health(lambda: True).methods, host="127.0.0.1", port=at.health_port, flag="--grpc-health-port")
    await server.start()
    await health.start()
    bench.stack.push_async_callback(health.stop, 0)
    bench.stack.push_async_callback(server.stop, 0)
    document = load(STANDALONE)
    modes = ext_proc(named(document, "listeners", "gateway"))["processing_mode"]
    modes |= {
        "request_body_mode": request_mode,
        "response_body_mode": response_mode,
        "request_trailer_mode": "SEND",
        "response_trailer_mode": "SEND",
    }
    path = tmp_path / "modes.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    client = await bench.client(await bench.envoy(path, picker_tls=False))
    chat = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "hi"}]}
    response = await client.post("/v1/chat/completions", json=chat)
    assert (response.status_code, response.headers["x-session-token"]) == (200, "a1 a")
    assert response.headers.get_list("x-served-by") == ["hidden"]
    assert ("[DONE]" if stream else "usage") in response.text
    await eventually(lambda: server.open == 0, "the stream ends")
    counted = response_mode != "NONE" or Meter in plugins
    assert Session.ends == [("a1", False, USAGE["completion_tokens"] if counted else None)]
