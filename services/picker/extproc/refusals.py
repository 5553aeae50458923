"""Encodes refusals, and makes those of the conversation itself.

gRPC clients get a gRPC status, all others the error JSON of their API. The path alone determines the API, so a request
whose body hasn't been read is refused in the right format, too.
"""

from enum import Enum, auto

import msgspec

from services.picker import metadata
from services.picker.extproc.events import Limits
from services.picker.extproc.outgoing import STATUS_CODES, immediate
from services.picker.metadata import REJECTED_MEMORY
from services.picker.parsers.anthropic import AnthropicParser
from services.picker.parsers.grpc_frame import is_grpc
from services.picker.parsers.parser import bare_path
from services.picker.request import Headers, Refusal


class ErrorFormat(Enum):
    """The API whose error format a client reads."""

    OPENAI = auto()
    ANTHROPIC = auto()
    GRPC = auto()


_GRPC_STATUS = {
    400: 3,  # INVALID_ARGUMENT
    401: 16,  # UNAUTHENTICATED
    403: 7,  # PERMISSION_DENIED
    404: 5,  # NOT_FOUND
    408: 4,  # DEADLINE_EXCEEDED
    409: 10,  # ABORTED
    412: 9,  # FAILED_PRECONDITION
    413: 8,  # RESOURCE_EXHAUSTED
    429: 8,
    431: 8,
    500: 13,  # INTERNAL
    501: 12,  # UNIMPLEMENTED
    503: 14,  # UNAVAILABLE
    504: 4,
}
_UNKNOWN = 2

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""`error.type` by status, from Anthropic's documentation of errors. There an overloaded API answers 529, which is no
status of HTTP's; the endpoint picker protocol says 503."""


FORMAT_HEADERS = frozenset({"content-type", *metadata.PATHS})
"""What `error_format_of` reads."""


def error_format_of(headers: Headers) -> ErrorFormat:
    """The form in which the client of a request with these headers reads errors."""
    if is_grpc(headers):
        return ErrorFormat.GRPC
    path = bare_path(headers.first_of(metadata.PATHS))
    return ErrorFormat.ANTHROPIC if path.endswith(AnthropicParser.SUFFIXES) else ErrorFormat.OPENAI


def answer(refusal: Refusal, form: ErrorFormat) -> bytes:
    """The `ImmediateResponse` for a refusal. A proxy turns the body into `grpc-message` for gRPC clients.

    A status that proxies don't take becomes 500.
    """
    grpc = form is ErrorFormat.GRPC
    status = refusal.status if refusal.status in STATUS_CODES else 500
    headers = {} if grpc else {"content-type": "application/json"}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    if refusal.reason:
        headers[metadata.DROPPED_REASON] = refusal.reason
    return immediate(
        status,
        headers,
        refusal.message.encode() if grpc else _json(refusal, status, form),
        refusal.reason or refusal.kind,
        _GRPC_STATUS.get(status, _UNKNOWN) if grpc else None,
    )


def _json(refusal: Refusal, status: int, form: ErrorFormat) -> bytes:
    """The error object of the Messages API, or of the OpenAI API, whose `code` model servers fill with the status."""
    if form is ErrorFormat.ANTHROPIC:
        general = "invalid_request_error" if status < 500 else "api_error"
        error = {"type": _ANTHROPIC_TYPES.get(status, general), "message": refusal.message}
        return msgspec.json.encode({"type": "error", "error": error})
    return msgspec.json.encode(
        {"error": {"message": refusal.message, "type": refusal.kind, "param": None, "code": status}}
    )


GRPC_BODIES = Refusal(
    status=500,
    message="the picker doesn't support request_body_mode GRPC; set BUFFERED or FULL_DUPLEX_STREAMED",
)
"""Of a request whose body can't be read or sent back as the proxy wants it."""


TRAILERS_ALONE = Refusal(
    status=400,
    message="the request has trailers and no body: leave out the trailers, or send a body",
)
"""Of a request whose headers have been answered, and whose trailers can't say where it goes."""


def large_headers(count: int, size: int, limits: Limits) -> Refusal:
    """The refusal of a request with too many headers, or with too many bytes of headers."""
    limit = f"{limits.header_count} headers with {limits.header_bytes} bytes"
    return Refusal(status=431, message=f"the request has {count} headers with {size} bytes; the limit is {limit}")


def large_message(size: int, limits: Limits) -> Refusal:
    """The refusal of a request with too much besides its body."""
    message = f"headers, subset hint and attributes have {size} bytes; the limit is {limits.beside_body}"
    return Refusal(status=431, message=message)


def large_subset(limits: Limits) -> Refusal:
    """The refusal of a subset hint with too many entries."""
    most = limits.subset_entries
    return Refusal(status=400, message=f"the gateway's subset hint has more than {most} entries")


_DIGITS = 18
"""Of a number that is shown."""


def large_body(limits: Limits, length: str = "") -> Refusal:
    """The refusal of a body above the limit, or of one that declares such a `length`."""
    shown = length if len(length) <= _DIGITS else f"more than 10^{_DIGITS}"
    body = f"a body of {shown} bytes" if length else "the body"
    return Refusal(status=413, message=f"{body} is larger than the limit of {limits.request_body} bytes")


def no_room(most: int) -> Refusal:
    """The refusal of a body that exceeds the limit of all bodies together."""
    return Refusal(
        status=503,
        message=f"no memory left: bodies in progress take all of the {most} bytes for them",
        kind="service_unavailable",
        reason=REJECTED_MEMORY,
        retry_after=1,
    )
