"""The protobuf messages of `envoy.service.ext_proc.v3`, typed: what the conversation reads, and the answers it gives.

`xds-protos` has no type stubs, so every untyped access is in this module. Answers that never change are built once and
shared: nobody may change a `ProcessingResponse` that came from here.
"""

import re
from collections.abc import Container, Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

from envoy.service.ext_proc.v3 import external_processor_pb2
from envoy.type.v3 import http_status_pb2
from msgspec import Struct

from services.picker.extproc import names
from services.picker.requests.request import Headers
from shared.model import is_ip, join_host_port

_pb: Any = external_processor_pb2
_status_pb: Any = http_status_pb2

Phase = Literal[
    "request_headers",
    "request_body",
    "request_trailers",
    "response_headers",
    "response_body",
    "response_trailers",
]


class HttpHeaders(Protocol):
    """`HttpHeaders`: the headers, and whether nothing follows them."""

    headers: Any
    end_of_stream: bool


class HttpBody(Protocol):
    """`HttpBody`: the whole body, or a piece of it, as the body mode says."""

    body: bytes
    end_of_stream: bool
    end_of_stream_without_message: bool
    grpc_message_compressed: bool

    def ByteSize(self) -> int: ...


if TYPE_CHECKING:

    class ProcessingRequest:
        """One phase of one HTTP request or response, as the proxy sees it."""

        request_headers: HttpHeaders
        response_headers: HttpHeaders
        request_body: HttpBody
        response_body: HttpBody
        metadata_context: Any
        attributes: Mapping[str, Any]
        protocol_config: Any

        @staticmethod
        def FromString(data: bytes) -> "ProcessingRequest": ...
        def SerializeToString(self) -> bytes: ...
        def WhichOneof(self, oneof: Literal["request"]) -> Phase | None: ...
        def HasField(self, name: str) -> bool: ...

    class ProcessingResponse:
        """The answer to one phase."""

        @staticmethod
        def FromString(data: bytes) -> "ProcessingResponse": ...
        def SerializeToString(self) -> bytes: ...

else:
    ProcessingRequest = _pb.ProcessingRequest
    ProcessingResponse = _pb.ProcessingResponse


class BodyMode(IntEnum):
    """`ProcessingMode.BodySendMode`: how a proxy shows bodies, and what it expects back."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


class BodyModes(Struct, frozen=True):
    """The modes of one conversation. The defaults are what gateways configure."""

    request: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response: BodyMode = BodyMode.FULL_DUPLEX_STREAMED


GATEWAY_MODES = BodyModes()


class Mutation(Struct, frozen=True, kw_only=True):
    """What a request's answer changes: the destination, in header and metadata, and headers to set and to remove."""

    destination: str
    set_headers: Mapping[str, str] = {}
    remove_headers: Iterable[str] = ()


_MODES = {(int(a), int(b)): BodyModes(a, b) for a in BodyMode for b in BodyMode}
_OVERWRITE_IF_EXISTS_OR_ADD = 2
_SEND = 1
"""`ProcessingMode.HeaderSendMode.SEND`."""
_PORT = re.compile("[0-9]{1,5}")
STATUS_CODES: frozenset[int] = frozenset(_status_pb.StatusCode.values()) - {0}
"""HTTP statuses that a proxy takes in an `ImmediateResponse`; it refuses the answer with any other."""

REQUEST_HEADERS_UNCHANGED: ProcessingResponse = _pb.ProcessingResponse(request_headers=_pb.HeadersResponse())
REQUEST_BODY_UNCHANGED: ProcessingResponse = _pb.ProcessingResponse(request_body=_pb.BodyResponse())
REQUEST_TRAILERS_UNCHANGED: ProcessingResponse = _pb.ProcessingResponse(request_trailers=_pb.TrailersResponse())
RESPONSE_HEADERS_UNCHANGED: ProcessingResponse = _pb.ProcessingResponse(response_headers=_pb.HeadersResponse())
RESPONSE_BODY_UNCHANGED: ProcessingResponse = _pb.ProcessingResponse(response_body=_pb.BodyResponse())
RESPONSE_TRAILERS_UNCHANGED: ProcessingResponse = _pb.ProcessingResponse(response_trailers=_pb.TrailersResponse())


def body_modes(message: ProcessingRequest, fallback: BodyModes) -> BodyModes:
    """The modes that the first message of a conversation announces; `fallback` for a proxy that announces none."""
    if not message.HasField("protocol_config"):
        return fallback
    config = message.protocol_config
    return _MODES.get((config.request_body_mode, config.response_body_mode), fallback)


def read_headers(headers: HttpHeaders) -> Headers:
    """All headers. `raw_value` goes before `value`; bytes that aren't UTF-8 become U+FFFD."""
    values: dict[str, tuple[str, ...]] = {}
    for header in headers.headers.headers:
        name = header.key.lower()
        raw = header.raw_value
        value = raw.decode("utf-8", "replace") if raw else header.value
        values[name] = (*values[name], value) if name in values else (value,)
    return Headers.of(values)


def read_few(headers: HttpHeaders, wanted: Container[str]) -> Headers:
    """The last value of each of the `wanted` headers, of however many there are."""
    values: dict[str, tuple[str, ...]] = {}
    for header in headers.headers.headers:
        if (name := header.key.lower()) in wanted:
            values[name] = (header.raw_value.decode("utf-8", "replace") or header.value,)
    return Headers.of(values)


def headers_size(headers: HttpHeaders) -> tuple[int, int]:
    """How many headers, and how many bytes they take on the wire."""
    found = headers.headers
    return len(found.headers), found.ByteSize()


def read_status(headers: HttpHeaders) -> int | None:
    """The HTTP status of a response, or None when there is none that is a number."""
    for header in headers.headers.headers:
        if header.key == ":status":
            text = header.raw_value or header.value.encode()
            return int(text) if len(text) == 3 and text.isdigit() else None
    return None


def read_subset(message: ProcessingRequest) -> tuple[str, ...] | None:
    """The subset hint of this message: a list of strings, or one string with commas. None when it has no hint."""
    metadata = message.metadata_context.filter_metadata
    if names.SUBSET_METADATA not in metadata:
        return None
    fields = metadata[names.SUBSET_METADATA].fields
    if names.SUBSET not in fields:
        return None
    value = fields[names.SUBSET]
    match value.WhichOneof("kind"):
        case "list_value":
            texts = [one.string_value for one in value.list_value.values]
        case "string_value":
            texts = [value.string_value]
        case _:
            return None
    return tuple(part for text in texts for one in text.split(",") if (part := one.strip()))


def read_served(message: ProcessingRequest) -> str | None:
    """The endpoint that answered, as `address:port`, from the attribute or else the metadata; None when not told."""
    for attributes in message.attributes.values():
        if names.UPSTREAM_ADDRESS in attributes.fields:
            text = attributes.fields[names.UPSTREAM_ADDRESS].string_value
            if text:
                return authority(text)
    if message.HasField("metadata_context"):
        metadata = message.metadata_context.filter_metadata
        if names.METADATA in metadata:
            fields = metadata[names.METADATA].fields
            if names.SERVED in fields and (text := fields[names.SERVED].string_value):
                return authority(text)
    return None


def authority(text: str) -> str:
    """`address:port` as endpoints spell it: IPv6 in brackets, also when a proxy leaves them out.

    >>> authority("fd00::1:8000")
    '[fd00::1]:8000'
    """
    text = text.strip()
    address, colon, port = text.rpartition(":")
    if not colon or ":" not in address or not is_ip(address) or not _PORT.fullmatch(port):
        return text
    return join_host_port(address, int(port))


def answer_headers(mutation: Mutation) -> ProcessingResponse:
    """The answer to request headers that says where the request goes."""
    answer = _pb.ProcessingResponse()
    _mutate(answer, answer.request_headers.response, mutation)
    return answer  # type: ignore[no-any-return]


def answer_body(mutation: Mutation, body: bytes | None = None) -> ProcessingResponse:
    """The answer to a request body (BUFFERED) that says where the request goes; `body` replaces it."""
    answer = _pb.ProcessingResponse()
    response = answer.request_body.response
    _mutate(answer, response, mutation)
    if body is not None:
        response.body_mutation.body = body
    return answer  # type: ignore[no-any-return]


def answer_trailers(mutation: Mutation) -> ProcessingResponse:
    """The answer to request trailers when nothing but the metadata can still say where the request goes."""
    answer = _pb.ProcessingResponse()
    answer.request_trailers.SetInParent()
    _destination(answer, mutation.destination)
    return answer  # type: ignore[no-any-return]


def echo_request(piece: bytes, end: bool, mutation: Mutation | None = None) -> ProcessingResponse:
    """A piece of the request body on its way back (FULL_DUPLEX_STREAMED)."""
    answer = _pb.ProcessingResponse()
    response = answer.request_body.response
    if mutation is not None:
        _mutate(answer, response, mutation)
    streamed = response.body_mutation.streamed_response
    streamed.body = piece
    streamed.end_of_stream = end
    return answer  # type: ignore[no-any-return]


def answer_response_headers(bodies: BodyMode | None = None) -> ProcessingResponse:
    """The answer to response headers of a response whose body may change: its length is no longer known. `bodies` asks
    for them in this mode (`mode_override`)."""
    answer = _pb.ProcessingResponse()
    if bodies is not BodyMode.BUFFERED:
        answer.response_headers.response.header_mutation.remove_headers.append("content-length")
    answer.response_headers.SetInParent()
    if bodies is not None:
        answer.mode_override.response_body_mode = int(bodies)
        answer.mode_override.response_trailer_mode = _SEND
    return answer  # type: ignore[no-any-return]


def replace_response(body: bytes, *, whole: bool) -> ProcessingResponse:
    """The answer that puts `body` in a chunk's place (STREAMED), or in that of the `whole` response (BUFFERED)."""
    answer = _pb.ProcessingResponse()
    response = answer.response_body.response
    response.body_mutation.body = body
    if whole:
        _set_headers(response.header_mutation.set_headers, {"content-length": str(len(body))})
    return answer  # type: ignore[no-any-return]


def stream_response(piece: bytes, end: bool) -> ProcessingResponse:
    """A piece of a response body that isn't the one that came (FULL_DUPLEX_STREAMED)."""
    answer = _pb.ProcessingResponse()
    streamed = answer.response_body.response.body_mutation.streamed_response
    streamed.body = piece
    streamed.end_of_stream = end
    return answer  # type: ignore[no-any-return]


def echo_response(chunk: HttpBody) -> ProcessingResponse:
    """A piece of the response body on its way back, unchanged (FULL_DUPLEX_STREAMED and GRPC)."""
    answer = _pb.ProcessingResponse()
    streamed = answer.response_body.response.body_mutation.streamed_response
    streamed.body = chunk.body
    if chunk.end_of_stream:
        streamed.end_of_stream = True
    if chunk.end_of_stream_without_message:
        streamed.end_of_stream_without_message = True
    if chunk.grpc_message_compressed:
        streamed.grpc_message_compressed = True
    return answer  # type: ignore[no-any-return]


def immediate(
    status: int, headers: Mapping[str, str], body: bytes, details: str, grpc_status: int | None = None
) -> ProcessingResponse:
    """The answer that ends the HTTP request here. `details` stands in the proxy's access log."""
    answer = _pb.ProcessingResponse()
    response = answer.immediate_response
    response.status.code = status
    response.body = body
    response.details = details
    if headers:
        _set_headers(response.headers.set_headers, headers)
    if grpc_status is not None:
        response.grpc_status.status = grpc_status
    return answer  # type: ignore[no-any-return]


def _mutate(answer: Any, response: Any, mutation: Mutation) -> None:
    response.clear_route_cache = True
    headers = response.header_mutation
    _set_headers(headers.set_headers, {names.DESTINATION: mutation.destination, **mutation.set_headers})
    if mutation.remove_headers:
        headers.remove_headers.extend(mutation.remove_headers)
    _destination(answer, mutation.destination)


def _set_headers(options: Any, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        option = options.add(append_action=_OVERWRITE_IF_EXISTS_OR_ADD)
        header = option.header
        header.key = name
        header.raw_value = value.encode()


def _destination(answer: Any, destination: str) -> None:
    metadata = answer.dynamic_metadata.fields[names.METADATA].struct_value
    metadata.fields[names.DESTINATION].string_value = destination
