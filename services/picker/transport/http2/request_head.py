"""A request's headers: whether HTTP/2 allows them (RFC 9113, section 8), and what gRPC finds in them.

gRPC: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

import re
from collections.abc import Iterable
from math import inf

from msgspec import Struct

from services.picker.transport.calls import Metadata, StatusCode
from shared.content_length import content_length

_PSEUDO = frozenset((":method", ":scheme", ":authority", ":path"))
_OF_A_CONNECTION = frozenset(("connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"))
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(r"[^\0\r\n]*")
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
ENCODINGS = ("identity", "gzip")


class Malformed(Exception):
    """Headers that HTTP/2 doesn't allow."""


class RequestHead(Struct, frozen=True, kw_only=True):
    """What the server needs of a request's headers."""

    path: str
    metadata: Metadata
    content_length: int | None = None
    http_status: int = 0
    """What to answer a request that isn't gRPC's; 0 for one that is."""
    refusal: tuple[StatusCode, str] | None = None
    """What to answer a call that can't be served, whatever its method."""
    gzip: bool = False
    """Whether compressed messages are gzip's."""
    timeout: float = inf
    """Seconds after which the client doesn't wait any more."""


def read_head(headers: Iterable[tuple[str, str]]) -> RequestHead:
    """The head of a request, from its decoded headers in order. Raises Malformed."""
    pseudo, metadata = _divided(headers)
    method, path = pseudo.get(":method", ""), pseudo.get(":path", "")
    if not (method and path and ":scheme" in pseudo):
        raise Malformed(":method, :scheme or :path is missing")
    found = dict(metadata)
    length = None
    if "content-length" in found:
        length = _length({value for name, value in metadata if name == "content-length"})
    encoding = found.get("grpc-encoding", "identity")
    timeout, refusal = inf, None
    if "grpc-timeout" in found:
        timeout = _seconds(found["grpc-timeout"])
    if timeout < 0:
        refusal = StatusCode.INTERNAL, "grpc-timeout is no number of at most 8 digits and a unit"
    elif encoding not in ENCODINGS:
        refusal = StatusCode.UNIMPLEMENTED, f"grpc-encoding {encoding[:40]!r} isn't known; these are: identity, gzip"
    return RequestHead(
        path=path,
        metadata=metadata,
        content_length=length,
        http_status=_http_status(method, found.get("content-type", "")),
        refusal=refusal,
        gzip=encoding == "gzip",
        timeout=timeout,
    )


def _length(values: set[str]) -> int:
    """The request's length. Raises Malformed unless all content-lengths are the same number."""
    length = content_length(min(values))
    if len(values) > 1 or length is None:
        raise Malformed("content-length is no number, or several ones")
    return length


def check_trailers(headers: Iterable[tuple[str, str]]) -> None:
    """Raises Malformed for trailers that HTTP/2 doesn't allow."""
    if _divided(headers)[0]:
        raise Malformed("trailers have no pseudo-headers")


def _divided(headers: Iterable[tuple[str, str]]) -> tuple[dict[str, str], Metadata]:
    pseudo: dict[str, str] = {}
    others: list[tuple[str, str]] = []
    for name, value in headers:
        if name.startswith(":"):
            if name not in _PSEUDO or name in pseudo or others:
                raise Malformed(f"pseudo-header {name[:40]!r} is unknown, repeated or late")
            pseudo[name] = value
        elif not _NAME.fullmatch(name) or name in _OF_A_CONNECTION or (name == "te" and value != "trailers"):
            raise Malformed(f"header {name[:40]!r} isn't allowed")
        else:
            others.append((name, value))
        if not _VALUE.fullmatch(value) or value.strip(" \t") != value:
            raise Malformed(f"the value of header {name[:40]!r} has control characters, or blanks around it")
    return pseudo, tuple(others)


def _http_status(method: str, content_type: str) -> int:
    if method != "POST":
        return 405
    subtype = content_type.removeprefix("application/grpc")
    return 0 if subtype != content_type and subtype[:1] in ("", "+", ";") else 415


def _seconds(text: str) -> float:
    """What a grpc-timeout says; -1 for one that isn't one."""
    match = _TIMEOUT.fullmatch(text)
    return int(match[1]) * _UNITS[match[2]] if match else -1.0
