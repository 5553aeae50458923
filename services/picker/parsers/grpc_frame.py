"""The frames that gRPC puts around messages: a flag, four bytes of length, the message.

A compressed message is inflated up to limits: few bytes can become many.
"""

import struct
import zlib

from services.picker.request import Headers, Unparsable

HEADER = struct.Struct(">BI")
"""Before each message: whether it is compressed, and its length."""
INFLATED = 2**20
"""Bytes that a compressed message has uncompressed, at most, to be read."""
COMPRESSED = 64 * 2**10
"""Bytes that it has compressed, at most: made to take long, each costs 0.1 µs."""
_WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
"""By `grpc-encoding`: how zlib names the two formats that every gRPC server reads."""


def is_grpc(headers: Headers) -> bool:
    """Whether a call is gRPC's, in any of its encodings."""
    return headers.get("content-type").lower().startswith("application/grpc")


def first_message(
    body: bytes, encoding: str, inflated: int = INFLATED, compressed: int = COMPRESSED
) -> memoryview | None:
    """The message of the first frame; what follows it is left alone, as a unary call has but one.

    `encoding` is the request's `grpc-encoding`. None when the message is compressed in another way than gzip or
    deflate, has more than `compressed` bytes, or more than `inflated` bytes uncompressed: it may be well, but isn't
    read here.

    Raises `Unparsable` for what is no frame.
    """
    if len(body) < HEADER.size:
        raise Unparsable(f"invalid gRPC frame: expected at least {HEADER.size} bytes for header, got {len(body)}")
    flag, length = HEADER.unpack_from(body)
    if flag > 1:
        raise Unparsable(f"invalid gRPC frame: its compression flag is {flag}; 0 or 1 is needed")
    message = memoryview(body)[HEADER.size : HEADER.size + length]
    if len(message) < length:
        raise Unparsable(
            f"incomplete gRPC payload: header indicates {length} bytes, but only {len(message)} bytes are available"
        )
    if not flag:
        return message
    if encoding in ("", "identity"):
        raise Unparsable(f"compressed gRPC payload without a grpc-encoding: {encoding!r}; gzip or deflate is needed")
    if encoding not in _WINDOW_BITS or length > compressed:
        return None
    return _inflated(message, encoding, inflated)


def _inflated(message: memoryview, encoding: str, limit: int) -> memoryview | None:
    inflate = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        data = inflate.decompress(message, limit + 1)
    except zlib.error as error:
        raise Unparsable(f"compressed gRPC payload isn't {encoding}: {error}") from error
    if len(data) > limit:
        return None
    if not inflate.eof:
        raise Unparsable(f"incomplete gRPC payload: its {encoding} data ends after {len(data)} bytes")
    if inflate.unused_data:  # such as another gzip member, which some servers read too
        raise Unparsable(f"compressed gRPC payload: {len(inflate.unused_data)} bytes follow its {encoding} data")
    return memoryview(data)
