"""Decodes headers. Clients and proxies repeat most of them, so those are decoded once and remembered.

`HttpHeaders` is read with a schema of the same bytes in which each header is `bytes`: a header that is remembered
takes one look-up, where the protobuf library would make four objects.
"""

from collections.abc import Container, Iterable, Sequence
from itertools import islice
from typing import Any

from envoy.config.core.v3 import base_pb2
from google.protobuf import descriptor_pool, struct_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass
from msgspec import Struct

from services.picker.request import Headers

_base_pb: Any = base_pb2
_SEARCHED = 1000
"""Headers that are searched for a response's status, or for what an error's format depends on."""
_MAX_ENTRY = 48
"""Bytes of a header that is remembered: longer ones are credentials, or new with every request, such as its id."""
_REMEMBERED = 4096
_STATUSES = {f"{code:03}": code for code in range(1000)}
_NAME, _VALUE = b"\x0a\x1a"
"""The tags of a header's name and value."""


class UndecodedHeaders(Struct, frozen=True):
    """`HttpHeaders`."""

    entries: Sequence[bytes]
    """A serialized `HeaderValue` each."""
    end_of_stream: bool


def _schema() -> Any:
    file = FileDescriptorProto(name="pointsman/headers.proto", package="pointsman", syntax="proto3")
    file.dependency.append(struct_pb2.DESCRIPTOR.name)
    of = FieldDescriptorProto
    headers = file.message_type.add(name="HeaderMap").field
    headers.add(name="headers", number=1, type=of.TYPE_BYTES, label=of.LABEL_REPEATED)
    attribute = file.message_type.add(name="Attribute").field  # deprecated, and not read
    attribute.add(name="key", number=1, type=of.TYPE_STRING, label=of.LABEL_OPTIONAL)
    attribute.add(name="value", number=2, type_name=".google.protobuf.Struct", label=of.LABEL_OPTIONAL)
    shown = file.message_type.add(name="HttpHeaders").field
    shown.add(name="headers", number=1, type_name="HeaderMap", label=of.LABEL_OPTIONAL)
    shown.add(name="attributes", number=2, type_name="Attribute", label=of.LABEL_REPEATED)
    shown.add(name="end_of_stream", number=3, type=of.TYPE_BOOL, label=of.LABEL_OPTIONAL)
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("pointsman.HttpHeaders"))


_parse = _schema().FromString


def undecoded(data: bytes) -> UndecodedHeaders:
    """A serialized `HttpHeaders`. Raises DecodeError for bytes that are none."""
    shown = _parse(data)
    return UndecodedHeaders(shown.headers.headers[:], shown.end_of_stream)  # a slice is made in C, item by item isn't


class _Headers(dict[bytes, tuple[str, tuple[str]]]):
    """Name in lower case and value of each header that is remembered, by its bytes."""

    def __missing__(self, entry: bytes) -> tuple[str, tuple[str]]:
        header = _decode(entry)
        if len(entry) <= _MAX_ENTRY:
            if len(self) >= _REMEMBERED:
                self.clear()
            self[entry] = header
        return header


_header = _Headers().__getitem__


def _decode(entry: bytes) -> tuple[str, tuple[str]]:
    """One header. `raw_value` goes before `value`; bytes that aren't UTF-8 become U+FFFD. Raises DecodeError for bytes
    that are none."""
    size = len(entry)
    if 4 < size < 128 and entry[0] == _NAME:  # as proxies send it: all that follows the name is a raw value
        value = 2 + entry[1]
        if value + 2 < size and entry[value] == _VALUE and entry[value + 1] == size - value - 2:
            try:
                return entry[2:value].decode().lower(), (entry[value + 2 :].decode(),)
            except UnicodeDecodeError:
                pass
    header = _base_pb.HeaderValue.FromString(entry)
    raw = header.raw_value
    return header.key.lower(), (raw.decode("utf-8", "replace") if raw else header.value,)


def read_headers(shown: UndecodedHeaders) -> Headers:
    """All headers. Raises DecodeError for bytes that aren't a header."""
    values: dict[str, tuple[str, ...]] = dict(map(_header, shown.entries))
    return Headers.of(values if len(values) == len(shown.entries) else _gathered(shown.entries))


def _gathered(entries: Iterable[bytes]) -> dict[str, tuple[str, ...]]:
    """The values of each header, where one has several."""
    values: dict[str, list[str]] = {}
    for name, (value,) in map(_header, entries):
        values.setdefault(name, []).append(value)
    return {name: tuple(all_of_it) for name, all_of_it in values.items()}


def read_few(shown: UndecodedHeaders, wanted: Container[str]) -> Headers:
    """The last value of each of the `wanted` headers among the first `_SEARCHED`."""
    found = map(_header, shown.entries[:_SEARCHED])
    return Headers.of({name: values for name, values in found if name in wanted})


def read_status(shown: UndecodedHeaders) -> int | None:
    """The HTTP status of a response, or None without a numeric one."""
    for entry in islice(shown.entries, _SEARCHED):
        if b":status" in entry:
            name, (text,) = _header(entry)
            if name == ":status":
                return _STATUSES.get(text)
    return None
