"""How a refusal reads on the wire: a gRPC status for gRPC clients, else the JSON that the client's API has for errors.

Which API that is, the path says alone: also a request whose body nobody has read is refused in the right form.
"""

from enum import Enum

import msgspec

from services.picker.extproc import names
from services.picker.extproc.outgoing import STATUS_CODES, immediate
from services.picker.requests.anthropic import AnthropicParser
from services.picker.requests.parsers import bare_path
from services.picker.requests.request import Headers, Refusal


class Form(Enum):
    """Whose errors a client reads."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GRPC = "grpc"


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


FORM_HEADERS = frozenset({"content-type", *names.PATHS})
"""What `form_of` reads."""


def form_of(headers: Headers) -> Form:
    """The form in which the client of a request with these headers reads errors."""
    if headers.get("content-type").lower().startswith("application/grpc"):
        return Form.GRPC
    path = bare_path(headers.first_of(*names.PATHS))
    return Form.ANTHROPIC if path.endswith(AnthropicParser.SUFFIXES) else Form.OPENAI


def answer(refusal: Refusal, form: Form) -> bytes:
    """The `ImmediateResponse` for a refusal. A proxy turns the body into `grpc-message` for gRPC clients.

    A status that proxies don't take becomes 500.
    """
    grpc = form is Form.GRPC
    status = refusal.status if refusal.status in STATUS_CODES else 500
    headers = {} if grpc else {"content-type": "application/json"}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    if refusal.reason:
        headers[names.DROPPED_REASON] = refusal.reason
    return immediate(
        status,
        headers,
        refusal.message.encode() if grpc else _BODIES[form](refusal),
        refusal.reason or refusal.kind,
        _GRPC_STATUS.get(status, _UNKNOWN) if grpc else None,
    )


def _openai(refusal: Refusal) -> bytes:
    """The error object of the OpenAI API. `code` is the HTTP status, as model servers fill it."""
    error = {"message": refusal.message, "type": refusal.kind, "param": None, "code": refusal.status}
    return msgspec.json.encode({"error": error})


def _anthropic(refusal: Refusal) -> bytes:
    """The error object of the Messages API."""
    general = "invalid_request_error" if refusal.status < 500 else "api_error"
    error = {"type": _ANTHROPIC_TYPES.get(refusal.status, general), "message": refusal.message}
    return msgspec.json.encode({"type": "error", "error": error})


_BODIES = {Form.OPENAI: _openai, Form.ANTHROPIC: _anthropic}
