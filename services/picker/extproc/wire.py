"""Sends chunks of a response back without decoding them.

Nobody changes most chunks of a streamed response. A proxy sends `HttpBody` and expects `StreamedBodyResponse`; both
have the same fields with the same numbers. So the answer is the chunk's own bytes with other length prefixes. All other
cases are left to the protobuf library.
"""

from collections.abc import Callable, Iterable

from envoy.service.ext_proc.v3 import external_processor_pb2
from google.protobuf.message import DecodeError
from xxhash import xxh3_128_digest

from services.picker.extproc.messages import ProcessingRequest
from services.picker.parsers.protobuf import varint


def tag(message: str, field: str) -> bytes:
    """The one byte before a length-delimited field."""
    descriptor = external_processor_pb2.DESCRIPTOR.message_types_by_name[message].fields_by_name[field]
    return bytes(((descriptor.number << 3) | 2,))


_RESPONSE_BODY = tag("ProcessingRequest", "response_body")
_BODY = tag("HttpBody", "body")
_LAYERS = (
    tag("BodyMutation", "streamed_response"),
    tag("CommonResponse", "body_mutation"),
    tag("BodyResponse", "response"),
    tag("ProcessingResponse", "response_body"),
)
_PIECE = tag("StreamedBodyResponse", "body")


def span(data: bytes, start: int = 0) -> tuple[int, int]:
    """Where the content of the length-delimited field at `start` begins and ends; (0, 0) where that isn't plain to
    see."""
    at = start + 1
    if at + 1 < len(data) and data[at + 1] < 0x80 <= data[at]:  # as in most messages
        size, at = (data[at] & 0x7F) | data[at + 1] << 7, at + 2
        return (at, at + size) if at + size <= len(data) else (0, 0)
    size, shift = 0, 0
    for byte in data[at : at + 5]:
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (at, at + size) if at + size <= len(data) else (0, 0)
    return 0, 0


def nested(tags: Iterable[bytes], size: int) -> bytes:
    """What stands before `size` bytes that are the content of a field, which is all of a message that is a field, and
    so on: the innermost tag comes first."""
    prefix = b""
    for field_tag in tags:
        prefix = field_tag + varint(size + len(prefix)) + prefix
    return prefix


class ChunkReader:
    """The pieces of one response. Messages of one length begin alike, so the next one of a length takes no reading."""

    __slots__ = ("_tail", "_tail_size")

    def __init__(self) -> None:
        self._tail = b""
        """What follows the piece in every message, such as metadata: proxies repeat it. Of a long one, its digest."""
        self._tail_size = 0

    def body(self, text: bytes) -> bytes:
        """The body in a `ProcessingRequest` that is nothing but a piece in the middle of a response's body; empty for
        any other message."""
        tail = self._tail
        size = len(text) - self._tail_size
        head = _HEADS[size]
        if head and text.startswith(head) and (not tail or _kept(text[size:]) == tail):
            return text[len(head) : size]
        return self._learn(text) if text[:1] == _RESPONSE_BODY and len(text) <= _MAX_LEARNT else b""

    def _learn(self, text: bytes) -> bytes:
        """`body` for a message with another tail than the last one's."""
        try:
            message = ProcessingRequest.FromString(text)
        except DecodeError:
            return b""
        shown = message.response_body
        size = shown.ByteSize()
        end = 1 + len(varint(size)) + size
        head = _HEADS[end]
        whole = len(head) + len(shown.body) == end  # there is nothing but the body in it
        if message.WhichOneof("request") != "response_body" or not whole or not text.startswith(head):
            return b""
        tail = text[end:]
        self._tail, self._tail_size = _kept(tail), len(tail)
        return text[len(head) : end]


def _kept(tail: bytes) -> bytes:
    """What a stream keeps of a tail. It may be a gateway's hint of thousands of endpoints."""
    return tail if len(tail) <= _MAX_KEPT else xxh3_128_digest(tail)


def echo(body: bytes) -> bytes:
    """The answer that sends on `body`, which isn't empty and not the last of the response."""
    return _ANSWERS[len(body)] + body


_MAX_LEARNT = 64 * 2**10
"""Bytes of a message that is decoded to see what is in it: others are looked through first."""
_MAX_KEPT = 1024
"""Bytes of a tail that is kept itself."""
_REMEMBERED = 4096


def _head(size: int) -> bytes:
    """How a message of `size` bytes begins that is nothing but a piece; empty where none has that size."""
    for width in range(1, 5):
        # The prefix of the body's length is as long as it happens to be; so is that of the message around it.
        inner = size - 1 - len(varint(max(size - 1 - width, 0)))
        body = inner - 1 - len(varint(max(inner - 1 - width, 0)))
        if body > 0:
            head = b"".join((_RESPONSE_BODY, varint(inner), _BODY, varint(body)))
            if len(head) + body == size:
                return head
    return b""


class _Prefixes(dict[int, bytes]):
    """What precedes a piece, by size, made on demand: a subscript costs half of a call to `lru_cache`."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        self._make = make

    def __missing__(self, size: int) -> bytes:
        if len(self) >= _REMEMBERED:
            self.clear()
        prefix = self[size] = self._make(size)
        return prefix


_HEADS = _Prefixes(_head)
_ANSWERS = _Prefixes(lambda size: nested((_PIECE, *_LAYERS), size))
