"""Watch events out of bytes: lines however TCP has cut them, and what each of them says. Sans-IO."""

from collections.abc import Iterator
from typing import Any

import msgspec

from services.watcher.kubernetes.errors import BadAnswer
from services.watcher.kubernetes.resource import JsonObject
from shared.quantities import format_size

ADDED = "ADDED"
MODIFIED = "MODIFIED"
DELETED = "DELETED"
BOOKMARK = "BOOKMARK"
ERROR = "ERROR"
SHOWN = 120
"""Characters of a line that isn't an event which are worth showing."""


class WatchEvent(msgspec.Struct, frozen=True):
    """One line of a watch."""

    type: str
    """ADDED, MODIFIED, DELETED, BOOKMARK, ERROR, or what a later API server may invent."""
    object: JsonObject
    """Of a DELETED event, as the object was last; of a BOOKMARK, nothing but a resource version; of an ERROR, a
    `Status`."""

    @property
    def resource_version(self) -> str:
        """Raises BadAnswer when there is none: without it nobody could go on from here."""
        return resource_version(self.object)


class Lines:
    """Collects what came until a line is complete. Lines longer than `limit` bytes are refused."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0

    @property
    def pending(self) -> int:
        """Bytes of a line whose end hasn't come."""
        return self._size

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that these bytes complete, without their ends; empty ones are left out. Raises BadAnswer."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._take(data[start:end])
            start = end + 1
            line = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
            if line and not line.isspace():
                yield line
        if start < len(data):
            self._take(data[start:] if start else data)

    def _take(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            raise BadAnswer(f"a watch event is longer than the limit of {format_size(self._limit)} bytes")
        self._pieces.append(piece)

    def __repr__(self) -> str:
        return f"<Lines {self._size} bytes pending>"


_decoder = msgspec.json.Decoder(WatchEvent)


def parse_event(line: bytes) -> WatchEvent:
    """What a line says. Raises BadAnswer when it isn't an event: then nobody knows what was missed."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = line[:SHOWN].decode(errors="replace")
        more = "…" if len(line) > SHOWN else ""
        raise BadAnswer(f"a line of a watch isn't an event ({error}): {shown}{more}") from error


def check_object(item: Any) -> None:
    """Raise BadAnswer unless this has what every object has: `metadata` with a name and a resource version."""
    resource_version(item)
    name = item["metadata"].get("name")
    if not isinstance(name, str) or not name:
        raise BadAnswer(f"an object's metadata.name is {name!r}; a name is expected")


def resource_version(item: Any) -> str:
    """The `metadata.resourceVersion` of an object or a list. Raises BadAnswer when there is none."""
    metadata = item.get("metadata") if isinstance(item, dict) else None
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(version, str) or not version:
        raise BadAnswer(f"metadata.resourceVersion is {version!r}; a version is expected")
    return version
