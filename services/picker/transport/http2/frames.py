"""Frames of HTTP/2 (RFC 9113, sections 4 and 6): their numbers, and those that the server sends, as bytes."""

from collections.abc import Mapping
from struct import Struct

from services.picker.transport.http2.errors import ErrorCode

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA = 0x0
HEADERS = 0x1
PRIORITY = 0x2
RST_STREAM = 0x3
SETTINGS = 0x4
PUSH_PROMISE = 0x5
PING = 0x6
GOAWAY = 0x7
WINDOW_UPDATE = 0x8
CONTINUATION = 0x9

ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITIZED = 0x20

ENABLE_PUSH = 0x2
MAX_CONCURRENT_STREAMS = 0x3
INITIAL_WINDOW_SIZE = 0x4
MAX_FRAME_SIZE = 0x5
MAX_HEADER_LIST_SIZE = 0x6

DEFAULT_WINDOW = 65_535
MAX_WINDOW = 2**31 - 1
MIN_FRAME_LIMIT = 2**14
MAX_FRAME_LIMIT = 2**24 - 1
STREAM_ID = 2**31 - 1
"""The bits of a stream's id; the one above them is reserved."""

HEAD_SIZE = 9
HEAD = Struct(">BHBBL")
"""A frame's head: bits 16 to 23 of the payload's length, the other bits, type, flags, stream."""
MESSAGE_FRAME = Struct(">BHBBLBL")
"""The head of a DATA frame that holds a whole gRPC message, and that message's: compressed or not, length."""
MESSAGE_HEAD_SIZE = 5
MESSAGE_HEAD = Struct(">BL")
UINT32 = Struct(">L")
SETTING = Struct(">HL")
_GOAWAY = Struct(">LL")


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    size = len(payload)
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def settings(values: Mapping[int, int]) -> bytes:
    """SETTINGS with these values."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*item) for item in values.items()))


def window_update(stream_id: int, more: int) -> bytes:
    """The peer may send so many bytes more, on a stream or, as 0, on the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, UINT32.pack(more))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """The stream ends here."""
    return frame(RST_STREAM, 0, stream_id, UINT32.pack(code))


def goaway(last_stream_id: int, code: ErrorCode, text: str = "") -> bytes:
    """No streams beyond this one are taken."""
    return frame(GOAWAY, 0, 0, _GOAWAY.pack(last_stream_id, code) + text.encode()[:256])


SETTINGS_ACK = frame(SETTINGS, ACK, 0)
