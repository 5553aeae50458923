"""Decodes the messages of a proxy: the phase with its own message, and the context that comes with it.

A phase's own message is new with every request. Proxies repeat the context, such as the body modes or the address that
answered, so its bytes are decoded once and remembered.
"""

import re
from collections.abc import Callable
from itertools import islice
from sys import getsizeof
from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2
from google.protobuf.message import DecodeError
from msgspec import Struct

from services.picker import metadata
from services.picker.extproc import wire
from services.picker.extproc.headers import undecoded
from services.picker.extproc.messages import BodyMode, BodyModes, Phase, ProcessingRequest
from services.picker.parsers.protobuf import Reader
from shared.model import is_ip, join_host_port

_pb: Any = external_processor_pb2
_MODES = {(int(a), int(b)): BodyModes(a, b) for a in BodyMode for b in BodyMode}
_PORT = re.compile("[0-9]{1,5}")
_SHORT: dict[bytes, tuple[Phase, Callable[[bytes], Any]]] = {
    wire.tag("ProcessingRequest", "request_headers"): ("request_headers", undecoded),
    wire.tag("ProcessingRequest", "response_headers"): ("response_headers", undecoded),
    wire.tag("ProcessingRequest", "request_body"): ("request_body", _pb.HttpBody.FromString),
}
"""Phases whose own message is read apart from what follows it, by the byte that they begin with."""
_REQUEST_BODY = wire.tag("ProcessingRequest", "request_body")
_BODY = wire.tag("HttpBody", "body")
_LONG = 64 * 2**10
"""Bytes of a message from which a body is copied once only."""
_HEADERS = ("request_headers", "response_headers")
_BODIES = frozenset((_pb.ProcessingRequest.REQUEST_BODY_FIELD_NUMBER, _pb.ProcessingRequest.RESPONSE_BODY_FIELD_NUMBER))
_MAX_FIELDS = 256
"""Of a long message, without those in its headers and in what comes along: proxies write a handful."""
_MAX_ADDRESS = 256
"""Characters of the endpoint that answered."""
_MAX_TAIL = 1024
"""Bytes of a context that is remembered."""
_REMEMBERED = 4 * 2**20
"""Bytes of memory for remembered contexts."""
_OVERHEAD = 512
"""Bytes of memory for a context, besides its own bytes and its subset hint."""


class Context(Struct, frozen=True):
    """What comes along with a phase. Proxies attach each of these to some phases only."""

    modes: BodyModes | None = None
    """The body modes that the proxy announces."""
    subset: tuple[str, ...] | None = None
    """The subset hint: entries without blanks."""
    served: str | None = None
    """`address:port` of the endpoint that answered."""


class Body(Struct, frozen=True):
    """A long piece of a request's body, as `HttpBody` has it."""

    body: bytes
    end_of_stream: bool


class Message(Struct, frozen=True):
    """One `ProcessingRequest`."""

    phase: Phase | None
    """None for one that this version of the protocol doesn't have."""
    shown: Any
    """`UndecodedHeaders`, `HttpBody`, `Body` or `HttpTrailers`."""
    size: int
    """Bytes of headers on the wire."""
    context: Context


_NOTHING = Context()


class _Contexts:
    """Contexts by their bytes. All are forgotten when they take more than `_REMEMBERED` bytes: the proxies' usual ones
    come again at once."""

    def __init__(self) -> None:
        self._contexts: dict[bytes, Context] = {}
        self._size = 0
        self.get = self._contexts.get

    def add(self, data: bytes, context: Context) -> None:
        size = len(data) + sum(map(getsizeof, context.subset or ())) + _OVERHEAD
        if self._size + size > _REMEMBERED:
            self._contexts.clear()
            self._size = 0
        self._contexts[data] = context
        self._size += size

    def __repr__(self) -> str:
        return f"<_Contexts {len(self._contexts)}, {self._size} bytes>"


_CONTEXTS = _Contexts()
_BARE = {
    wire.tag("ProcessingRequest", phase) + b"\x00": Message(phase, None, 0, _NOTHING)
    for phase in ("request_trailers", "response_trailers")
}


def read(data: bytes, max_entries: int = 5_000) -> Message:
    """A serialized `ProcessingRequest`. Of a subset hint one entry more than `max_entries` is read. Raises DecodeError
    for bytes that are none."""
    if len(data) == 2 and (bare := _BARE.get(data)) is not None:
        return bare
    if len(data) > _LONG and (long := _long_body(data)) is not None:
        return long
    short = _SHORT.get(data[:1])
    if short is not None:
        start, end = wire.span(data)
        if end:
            tail = data[end:]
            context = _CONTEXTS.get(tail) or _learn(tail, max_entries)
            if context is not None:
                return Message(short[0], short[1](data[start:end]), end - start, context)
    message = ProcessingRequest.FromString(data)
    phase = message.WhichOneof("request")
    if phase is None:
        return Message(None, None, 0, _NOTHING)
    shown, context = getattr(message, phase), _context(message, max_entries)
    if phase not in _HEADERS:
        return Message(phase, shown, 0, context)
    return Message(phase, undecoded(shown.SerializeToString()), shown.ByteSize(), context)


def beside_body(data: bytes) -> int:
    """How many bytes of a message aren't its body: each may cost a hundred times what one of a body does.

    Raises DecodeError for what is no message, or has more fields than any proxy writes.
    """
    reader, beside = Reader(_MAX_FIELDS), len(data)
    try:
        for number, shown in reader.fields(memoryview(data)):
            if number in _BODIES and isinstance(shown, memoryview):
                for inner, value in reader.fields(shown):
                    if inner == _pb.HttpBody.BODY_FIELD_NUMBER and isinstance(value, memoryview):
                        beside -= len(value)
    except ValueError as error:
        raise DecodeError(str(error)) from error
    return beside


def _long_body(data: bytes) -> Message | None:
    """A message that begins with a request's body, and that with its bytes; None for one that is laid out otherwise."""
    start, end = wire.span(data)
    if data[:1] != _REQUEST_BODY or not end or data[start : start + 1] != _BODY:
        return None
    first, last = wire.span(data, start)
    if not last or last > end or len(data) - last > _MAX_TAIL:
        return None
    rest, tail = _pb.HttpBody.FromString(data[last:end]), data[end:]
    context = _CONTEXTS.get(tail) or _learn(tail)
    if context is None or rest.body:
        return None
    return Message("request_body", Body(data[first:last], rest.end_of_stream), 0, context)


def _learn(tail: bytes, max_entries: int = _MAX_TAIL) -> Context | None:
    """The context that these bytes hold; None when there is more in them, or when they are no fields of a message."""
    try:
        message = ProcessingRequest.FromString(tail)
    except DecodeError:
        return None
    if message.WhichOneof("request") is not None:
        return None
    context = _context(message, max_entries)
    if len(tail) <= _MAX_TAIL:
        _CONTEXTS.add(tail, context)
    return context


def _context(message: Any, max_entries: int) -> Context:
    has_modes, has_metadata, served = message.HasField("protocol_config"), message.HasField("metadata_context"), None
    if message.attributes or has_metadata:
        served = _served(message)
    elif not has_modes:
        return _NOTHING
    modes = None
    if has_modes:
        config = message.protocol_config
        modes = _MODES.get((config.request_body_mode, config.response_body_mode))
    return Context(modes, _subset(message, max_entries) if has_metadata else None, served)


def _subset(message: Any, most: int) -> tuple[str, ...] | None:
    """The subset hint of this message: a list of strings, or one string with commas. None when it has no hint.
    One entry more than `most` stands for any that are too many."""
    found = message.metadata_context.filter_metadata
    if metadata.SUBSET_NAMESPACE not in found:
        return None
    fields = found[metadata.SUBSET_NAMESPACE].fields
    if metadata.SUBSET not in fields:
        return None
    value = fields[metadata.SUBSET]
    match value.WhichOneof("kind"):
        case "list_value":
            texts = [entry.string_value for entry in islice(value.list_value.values, most + 1)]
        case "string_value":
            texts = [value.string_value]
        case _:
            return None
    parts = tuple(islice((part.strip() for text in texts for part in text.split(",", most + 1)), most + 1))
    return parts if len(parts) > most else tuple(filter(None, parts))  # empty ones take as long


def _served(message: Any) -> str | None:
    """The endpoint that answered, as `address:port`, from the attribute or else the metadata; None when not told."""
    places = [(attributes, metadata.UPSTREAM_ADDRESS) for attributes in message.attributes.values()]
    if metadata.NAMESPACE in (found := message.metadata_context.filter_metadata):
        places.append((found[metadata.NAMESPACE], metadata.SERVED))
    texts = (struct.fields[name].string_value for struct, name in places if name in struct.fields)
    text = next(filter(None, texts), "")
    return authority(text[:_MAX_ADDRESS]) if text else None


def authority(text: str) -> str:
    """`address:port` as endpoints spell it: IPv6 in brackets, also when a proxy leaves them out.

    >>> authority("fd00::1:8000")
    '[fd00::1]:8000'
    """
    text = text.strip()
    address, colon, port = text.rpartition(":")
    if not colon or ":" not in address or not is_ip(address) or not _PORT.fullmatch(port):
        return text
    return join_host_port(address, int(port))
