"""A picker reduced to a fixed answer, for Envoy's side of the conversation by itself: it records what Envoy sends."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2, external_processor_pb2_grpc
from google.protobuf import struct_pb2
from grpc_health.v1 import _async as health
from grpc_health.v1 import health_pb2, health_pb2_grpc

# Generated code without types.
ext: Any = external_processor_pb2
ext_grpc: Any = external_processor_pb2_grpc
core: Any = base_pb2
modes: Any = processing_mode_pb2
health_grpc: Any = health_pb2_grpc

DESTINATION = "x-gateway-destination-endpoint"
SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
PIECE = 62_000

OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Envoy's configuration PINGs once a second; by default this is answered with GOAWAY "too many pings".
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.keepalive_permit_without_calls", 1),
]


class Mode(StrEnum):
    BUFFERED = "buffered"
    DUPLEX = "duplex"


@dataclass
class Conversation:
    """What Envoy sent for one request."""

    kinds: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    request_body: int = 0
    response_body: bytes = b""
    served: str = ""
    """The endpoint that served, by the attribute `upstream.address`."""
    served_metadata: str = ""
    """The same, by the protocol's metadata."""
    end: str = ""
    """`half-close` or `cancelled`, once it is over."""
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Script:
    """The fixed answer."""

    mode: Mode = Mode.BUFFERED
    destinations: Sequence[str] = ()
    hang: bool = False
    """Read and never answer."""
    fail: grpc.StatusCode | None = None
    """End every stream with this status."""
    want_response: str = ""
    """Ask for the response's body in this mode, for this request."""
    unanswered: str = ""
    """Messages of this kind get no answer."""


class StandIn:
    """The server. `async with` starts it on the ports given, and stops it at once."""

    def __init__(self, port: int, health_port: int, script: Script) -> None:
        self.port = port
        self.health_port = health_port
        self.script = script
        self.conversations: list[Conversation] = []
        self.open = 0
        self._health = health.HealthServicer()

    @property
    def last(self) -> Conversation:
        return self.conversations[-1]

    async def __aenter__(self) -> "StandIn":
        self._server = grpc.aio.server(options=OPTIONS)
        ext_grpc.add_ExternalProcessorServicer_to_server(_Servicer(self), self._server)
        self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._health_server = grpc.aio.server()
        health_grpc.add_HealthServicer_to_server(self._health, self._health_server)
        self._health_server.add_insecure_port(f"127.0.0.1:{self.health_port}")
        await self.set_serving(True)
        await self._server.start()
        await self._health_server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        await self._health_server.stop(0)
        await self._server.stop(0)

    async def set_serving(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        await self._health.set(SERVICE, status)


class _Servicer:
    def __init__(self, owner: StandIn) -> None:
        self._owner = owner

    async def Process(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        script, seen = self._owner.script, Conversation()
        self._owner.conversations.append(seen)
        self._owner.open += 1
        bodies: dict[str, bytearray] = {"request_body": bytearray(), "response_body": bytearray()}
        try:
            async for request in requests:
                _record(seen, request)
                if script.hang:
                    continue
                if script.fail is not None:
                    await context.abort(script.fail, "as the script says")
                if request.WhichOneof("request") == script.unanswered:
                    continue
                for answer in _answers(script, request, bodies):
                    yield answer
            seen.end = "half-close"
        except (asyncio.CancelledError, GeneratorExit):  # the latter where an answer was on its way
            seen.end = "cancelled"
            raise
        finally:
            self._owner.open -= 1
            seen.over.set()


def _record(seen: Conversation, request: Any) -> None:
    kind = request.WhichOneof("request")
    seen.kinds.append(kind)
    for attributes in request.attributes.values():
        if "upstream.address" in attributes.fields:
            seen.served = attributes.fields["upstream.address"].string_value
    if kind == "response_headers" and "envoy.lb" in request.metadata_context.filter_metadata:
        fields = request.metadata_context.filter_metadata["envoy.lb"].fields
        seen.served_metadata = fields["x-gateway-destination-endpoint-served"].string_value
    if kind == "request_headers":
        seen.headers = {h.key: h.raw_value.decode() for h in request.request_headers.headers.headers}
    elif kind == "request_body":
        seen.request_body += len(request.request_body.body)
    elif kind == "response_body":
        seen.response_body += request.response_body.body


def _answers(script: Script, request: Any, bodies: dict[str, bytearray]) -> list[Any]:
    kind = request.WhichOneof("request")
    if kind == "request_headers":
        if request.request_headers.end_of_stream:
            return [_decided(script, "request_headers")]
        return [] if script.mode is Mode.DUPLEX else [ext.ProcessingResponse(request_headers=ext.HeadersResponse())]
    if kind == "request_body" and script.mode is Mode.BUFFERED:
        return [_decided(script, "request_body")]
    if kind == "response_headers":
        answer = ext.ProcessingResponse(response_headers=ext.HeadersResponse())
        if script.want_response:
            answer.mode_override.response_body_mode = modes.ProcessingMode.BodySendMode.Value(script.want_response)
        return [answer]
    if kind == "response_body" and script.mode is Mode.BUFFERED:
        return [ext.ProcessingResponse(response_body=ext.BodyResponse())]
    if kind in bodies:
        body = getattr(request, kind)
        bodies[kind] += body.body
        if not body.end_of_stream:
            return []
        first = [_decided(script, "request_headers")] if kind == "request_body" else []
        return first + _echo(kind, bytes(bodies[kind]))
    return [ext.ProcessingResponse(**{kind: ext.TrailersResponse()})]


def _decided(script: Script, phase: str) -> Any:
    """The answer that carries the pick, as an answer to the headers or to the body."""
    common = ext.CommonResponse()
    answer = ext.ProcessingResponse()
    value = ",".join(script.destinations)
    if value:
        common.header_mutation.set_headers.append(
            core.HeaderValueOption(header=core.HeaderValue(key=DESTINATION, raw_value=value.encode()))
        )
        inner = struct_pb2.Struct()
        inner[DESTINATION] = value
        answer.dynamic_metadata["envoy.lb"] = inner
    if phase == "request_headers":
        answer.request_headers.response.CopyFrom(common)
    else:
        answer.request_body.response.CopyFrom(common)
    return answer


def _echo(kind: str, body: bytes) -> list[Any]:
    pieces = [body[i : i + PIECE] for i in range(0, len(body), PIECE)] or [b""]
    answers = []
    for index, piece in enumerate(pieces):
        response = ext.BodyResponse()
        streamed = response.response.body_mutation.streamed_response
        streamed.body = piece
        streamed.end_of_stream = index == len(pieces) - 1
        answers.append(ext.ProcessingResponse(**{kind: response}))
    return answers
