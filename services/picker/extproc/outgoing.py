"""Encodes the answers to a proxy.

Answers that never change are serialized once. Answers that only name a destination differ only in that name, so they
are assembled from pieces.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2
from envoy.type.v3 import http_status_pb2
from msgspec import Struct

from services.picker import metadata
from services.picker.extproc import wire
from services.picker.extproc.messages import BodyMode, Phase

_pb: Any = external_processor_pb2
_status_pb: Any = http_status_pb2
_OVERWRITE_IF_EXISTS_OR_ADD = 2
_SEND = 1
"""`ProcessingMode.HeaderSendMode.SEND`."""
PIECE = 62_000
"""Bytes of a body piece on its way back: Envoy and its relatives take at most 64 KiB (the Go original's figure)."""
_MAX_DESTINATION = 256
"""Bytes of a destination whose answers are put together from pieces: a few endpoints are shorter."""


_REPLACED = (
    wire.tag("BodyMutation", "body"),
    wire.tag("CommonResponse", "body_mutation"),
    wire.tag("BodyResponse", "response"),
    wire.tag("ProcessingResponse", "request_body"),
)


def _unchanged(phase: Phase) -> bytes:
    answer = _pb.ProcessingResponse()
    getattr(answer, phase).SetInParent()
    return _serialized(answer)


def _serialized(answer: Any) -> bytes:
    text: bytes = answer.SerializeToString()
    return text


REQUEST_HEADERS_UNCHANGED = _unchanged("request_headers")
REQUEST_BODY_UNCHANGED = _unchanged("request_body")
REQUEST_TRAILERS_UNCHANGED = _unchanged("request_trailers")
RESPONSE_HEADERS_UNCHANGED = _unchanged("response_headers")
RESPONSE_BODY_UNCHANGED = _unchanged("response_body")
RESPONSE_TRAILERS_UNCHANGED = _unchanged("response_trailers")
STATUS_CODES: frozenset[int] = frozenset(_status_pb.StatusCode.values()) - {0}
"""HTTP statuses that a proxy takes in an `ImmediateResponse`; it refuses the answer with any other."""


@cache
def longer(seconds: float) -> bytes:
    """Extends the proxy's timeout for the current message (`override_message_timeout`)."""
    answer = _pb.ProcessingResponse()
    answer.override_message_timeout.FromMilliseconds(max(round(seconds * 1000), 1))
    return _serialized(answer)


class Mutation(Struct, frozen=True, kw_only=True):
    """What a request's answer changes: the destination, in header and metadata, and headers to set and to remove."""

    destination: str
    set_headers: Mapping[str, str] = {}
    remove_headers: Iterable[str] = ()
    scores: Mapping[str, float] = {}
    """Goes into the metadata, too."""


def answer_headers(mutation: Mutation) -> bytes:
    """The answer to request headers that says where the request goes."""
    return _plain("request_headers", mutation) or _mutated("request_headers", mutation)


def answer_body(mutation: Mutation, body: Sequence[bytes | memoryview] = ()) -> bytes:
    """The answer to a request body (BUFFERED) that says where the request goes; the pieces of `body` replace it."""
    answer = _plain("request_body", mutation) or _mutated("request_body", mutation)
    # messages that follow each other are one, so that a long body needn't be copied into another message first
    return b"".join((answer, wire.nested(_REPLACED, sum(map(len, body))), *body)) if body else answer


def replacing(mutation: Mutation, body: Sequence[bytes | memoryview]) -> Iterator[bytes]:
    """The answer with a long body in the place of the one that came."""
    yield answer_body(mutation, body)


def echoing(
    parts: Sequence[bytes | memoryview], ends: bool, mutation: Mutation | None = None, phase: Phase = "request_body"
) -> Iterator[bytes]:
    """A body on its way back in pieces (FULL_DUPLEX_STREAMED): the first carries the decision, the last says whether
    the body `ends` there."""
    body = memoryview(b"".join(parts) if len(parts) > 1 else parts[0])
    last = max(0, len(body) - 1) // PIECE * PIECE
    for start in range(0, last + 1, PIECE):
        answer = _pb.ProcessingResponse()
        response = getattr(answer, phase).response
        if mutation is not None:
            _mutate(answer, response, mutation)
            mutation = None
        streamed = response.body_mutation.streamed_response
        streamed.body = bytes(body[start : start + PIECE])
        streamed.end_of_stream = ends and start == last
        yield _serialized(answer)


@cache
def answer_response_headers(bodies: BodyMode | None = None, *, changes: bool = True) -> bytes:
    """The answer to response headers. Of a body that `changes` the length is no longer known. `bodies` asks for the
    body in this mode (`mode_override`)."""
    answer = _pb.ProcessingResponse()
    if changes and bodies is not BodyMode.BUFFERED:
        answer.response_headers.response.header_mutation.remove_headers.append("content-length")
    answer.response_headers.SetInParent()
    if bodies is not None:
        answer.mode_override.response_body_mode = int(bodies)
        answer.mode_override.response_trailer_mode = _SEND
    return _serialized(answer)


def set_response_headers(headers: Mapping[str, str]) -> bytes:
    """What sets these headers for the client when it follows an answer to response headers: messages that follow each
    other are one."""
    answer = _pb.ProcessingResponse()
    _set_headers(answer.response_headers.response.header_mutation.set_headers, headers)
    return _serialized(answer)


def replace_response(body: bytes, *, whole: bool) -> bytes:
    """The answer that puts `body` in a chunk's place (STREAMED), or in that of the `whole` response (BUFFERED)."""
    answer = _pb.ProcessingResponse()
    response = answer.response_body.response
    response.body_mutation.body = body
    if whole:
        _set_headers(response.header_mutation.set_headers, {"content-length": str(len(body))})
    return _serialized(answer)


def echo_response(chunk: Any) -> bytes:
    """A piece of the response body on its way back, unchanged (FULL_DUPLEX_STREAMED and GRPC). `HttpBody` and
    `StreamedBodyResponse` have the same fields with the same numbers."""
    answer = _pb.ProcessingResponse()
    answer.response_body.response.body_mutation.streamed_response.MergeFromString(chunk.SerializeToString())
    return _serialized(answer)


def immediate(
    status: int, headers: Mapping[str, str], body: bytes, details: str, grpc_status: int | None = None
) -> bytes:
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
    return _serialized(answer)


def _mutated(phase: Phase, mutation: Mutation) -> bytes:
    answer = _pb.ProcessingResponse()
    _mutate(answer, getattr(answer, phase).response, mutation)
    return _serialized(answer)


def _plain(phase: Phase, mutation: Mutation) -> bytes:
    """The same for a mutation that is nothing but a destination; empty for any other one."""
    if mutation.set_headers or mutation.remove_headers or mutation.scores:
        return b""
    destination = mutation.destination.encode()
    return destination.join(_pieces(phase, len(destination))) if 0 < len(destination) <= _MAX_DESTINATION else b""


@cache
def _pieces(phase: Phase, length: int) -> tuple[bytes, ...]:
    """What stands before, between and after the places of a destination of this length: header and metadata."""
    blank = "\0" * length  # no tag and no length is zero
    pieces = _mutated(phase, Mutation(destination=blank)).split(blank.encode())
    return tuple(pieces) if len(pieces) == 3 else ()


def _mutate(answer: Any, response: Any, mutation: Mutation) -> None:
    response.clear_route_cache = True
    headers = response.header_mutation
    _set_headers(headers.set_headers, {metadata.DESTINATION: mutation.destination, **mutation.set_headers})
    if mutation.remove_headers:
        headers.remove_headers.extend(mutation.remove_headers)
    _destination(answer, mutation)


def _set_headers(options: Any, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        option = options.add(append_action=_OVERWRITE_IF_EXISTS_OR_ADD)
        header = option.header
        header.key = name
        header.raw_value = value.encode()


def _destination(answer: Any, mutation: Mutation) -> None:
    found = answer.dynamic_metadata.fields[metadata.NAMESPACE].struct_value
    found.fields[metadata.DESTINATION].string_value = mutation.destination
    if mutation.scores:
        scores = found.fields[metadata.SCORES].struct_value.fields
        for authority, score in mutation.scores.items():
            scores[authority].number_value = score


def response_metadata(values: Mapping[tuple[str, str], float]) -> bytes:
    """What adds these numbers, by namespace and name, to the metadata when it follows an answer."""
    answer = _pb.ProcessingResponse()
    for (namespace, name), value in values.items():
        answer.dynamic_metadata.fields[namespace].struct_value.fields[name].number_value = value
    return _serialized(answer)
