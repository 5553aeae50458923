"""The events of a conversation, and its limits."""

from typing import TypeAlias

from msgspec import Struct

from services.picker.request import Headers, Refusal
from shared.quantities import Size

NO_HEADERS = Headers()
_ENTRY = 64
"""Bytes of an entry of a subset hint, generously: an IPv6 address and a port with the tags around them have 60."""


class Limits(Struct, frozen=True, kw_only=True):
    """How much is kept of one request, and of all requests together. Anything beyond a limit is refused."""

    request_body: Size = 16 * 2**20
    """Bytes; a larger body is refused with 413."""
    held_bodies: Size = 512 * 2**20
    """Bytes of bodies that all conversations together hold; a request whose body would go beyond is refused with 503,
    and a response passes unread."""
    header_count: int = 1000
    """Headers; a request with more is refused with 431, a response with more passes unread."""
    subset_entries: int = 5_000
    """Entries of a subset hint; a request with more is refused with 400."""
    header_bytes: Size = 256 * 2**10
    """Bytes of all request headers on the wire; more are refused with 431."""
    response_object: Size = 4 * 2**20
    """Bytes of a JSON object, of a line of events or of a gRPC message, that are held to be read; a larger one passes
    unread."""
    model_name: Size = 1024
    """Bytes of a model's name, in a body or header; a longer one is refused with 400."""

    @property
    def beside_body(self) -> int:
        """Bytes of a message without its body: room for the headers and the subset hint."""
        return self.header_bytes + _ENTRY * self.subset_entries


class RequestHead(Struct, frozen=True, kw_only=True):
    """What is known of a request besides its body."""

    headers: Headers
    path: str
    """With the query, as the client sent it; empty when the proxy didn't show the headers."""
    method: str
    request_id: str
    """`x-request-id`, or one that was made."""
    subset: tuple[str, ...] | None
    """The subset hint: entries without blanks; None means every endpoint, empty means none."""
    received_at: float
    """Monotonic seconds of the first message."""
    has_body: bool = True
    """Whether a body was shown. False for requests without one, and where the proxy keeps it (NONE, STREAMED)."""
    withheld: bool = False
    """Whether there is, or may be, a body that the proxy keeps to itself."""
    truncated: bool = False
    """Whether the proxy may have shown only the body's beginning (BUFFERED_PARTIAL)."""


class RequestReady(Struct, frozen=True):
    """The request is complete: answer it with `route` or `refuse`."""

    head: RequestHead
    body: bytes


class Refused(Struct, frozen=True):
    """The conversation itself refused the request; no RequestReady follows."""

    refusal: Refusal


class ResponseStarted(Struct, frozen=True):
    """The response headers have come."""

    status: int | None
    """HTTP status; None when the proxy didn't show it."""
    served: str | None
    """`address:port` of the endpoint that answered; None when the proxy doesn't tell."""
    headers: Headers = NO_HEADERS
    """The response's, if they were asked for and aren't too many."""


class ResponseBodyStarted(Struct, frozen=True):
    """The first piece of the response's body has come, from a proxy that shows bodies: the prompt has been read."""


class Completed(Struct, frozen=True):
    """The request is over; nothing follows. Comes once for every conversation, whatever happened before."""

    aborted: bool
    """Whether it ended before a response or a refusal was complete, as far as the proxy shows it."""


Event: TypeAlias = RequestReady | Refused | ResponseStarted | ResponseBodyStarted | Completed
