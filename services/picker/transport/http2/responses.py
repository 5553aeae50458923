"""Header blocks of responses. They never use HPACK's dynamic table, so the same bytes serve every connection.

The first block of each response sets the table's size to 0. A client that allows a smaller table than the usual one
waits for that (RFC 9113, section 4.3.1), and for all others it makes no difference.
"""

from services.picker.transport.calls import StatusCode


def _literal(name: str, value: bytes) -> bytes:
    """A header that isn't indexed (RFC 7541, section 6.2.2)."""
    return b"\x00" + _string(name.encode()) + _string(value)


def _string(text: bytes) -> bytes:
    """A string without Huffman coding (RFC 7541, sections 5.1 and 5.2)."""
    size = len(text)
    if size < 127:
        return bytes((size,)) + text
    length, rest = b"\x7f", size - 127
    while rest >= 128:
        length += bytes((rest & 0x7F | 0x80,))
        rest >>= 7
    return length + bytes((rest,)) + text


_NO_TABLE = b"\x20"
"""The size of the dynamic table: 0 (RFC 7541, section 6.3)."""
_STATUS_200 = b"\x88"
"""`:status: 200`, an entry of the static table."""
_STATUS_NAME = b"\x08"
"""`:status` with a value that follows."""
RESPONSE = (
    _NO_TABLE
    + _STATUS_200
    + _literal("content-type", b"application/grpc")
    + _literal("grpc-accept-encoding", b"identity,gzip")
)
"""Headers of every call."""
NOT_GRPC = b"this port serves gRPC: POST with content-type application/grpc\n"
"""Body of the answer to a request that isn't gRPC's."""
_PLAIN_TEXT = _literal("content-type", b"text/plain") + _literal("allow", b"POST")
_TRAILERS = tuple(_literal("grpc-status", b"%d" % code) for code in range(17))
_MAX_DETAILS = 1024
"""Bytes of a status message."""


def trailers(status: StatusCode, details: str) -> bytes:
    """Trailers of a call; after `RESPONSE`, all headers of one without a message."""
    if not details:
        return _TRAILERS[status]
    shown = details.encode("utf-8", "replace")[:_MAX_DETAILS]
    message = b"".join(b"%c" % byte if 32 <= byte <= 126 and byte != 37 else b"%%%02X" % byte for byte in shown)
    return _TRAILERS[status] + _literal("grpc-message", message)


def refusal(http_status: int) -> bytes:
    """Headers of the answer to a request that isn't gRPC's."""
    return _NO_TABLE + _STATUS_NAME + _string(b"%d" % http_status) + _PLAIN_TEXT
