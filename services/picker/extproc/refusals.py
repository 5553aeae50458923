"""How a refusal reads on the wire: OpenAI-style JSON for HTTP clients, a gRPC status for gRPC clients."""

import msgspec

from services.picker.extproc import names
from services.picker.extproc.messages import STATUS_CODES, ProcessingResponse, immediate
from services.picker.requests.request import Refusal

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


def answer(refusal: Refusal, grpc: bool) -> ProcessingResponse:
    """The `ImmediateResponse` for a refusal. A proxy turns the body into `grpc-message` for gRPC clients.

    A status that proxies don't take becomes 500.
    """
    status = refusal.status if refusal.status in STATUS_CODES else 500
    headers = {} if grpc else {"content-type": "application/json"}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    if refusal.reason:
        headers[names.DROPPED_REASON] = refusal.reason
    return immediate(
        status,
        headers,
        refusal.message.encode() if grpc else error_body(refusal),
        refusal.reason or refusal.kind,
        _GRPC_STATUS.get(status, _UNKNOWN) if grpc else None,
    )


def error_body(refusal: Refusal) -> bytes:
    """The error object of the OpenAI API. `code` is the HTTP status, as model servers fill it."""
    error = {"message": refusal.message, "type": refusal.kind, "param": None, "code": refusal.status}
    return msgspec.json.encode({"error": error})
