"""Watch events from bytes: lines however TCP has cut them, and the event in each. Sans-IO."""

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
"""Characters of an invalid line that an error shows."""


class WatchEvent(msgspec.Struct, frozen=True):
    """One line of a watch."""

    type: str
    """ADDED, MODIFIED, DELETED, BOOKMARK, ERROR, or a type of a later API server."""
    object: JsonObject
    """DELETED has the object's last version, BOOKMARK only a resource version, ERROR a `Status`."""

    @property
    def resource_version(self) -> str:
        """Raises BadAnswer if there is none: without it the watch can't be resumed."""
        return resource_version(self.object)


class LineSplitter:
    """Splits a stream of bytes into lines of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self.pending = 0
        """Bytes of an incomplete line."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that these bytes complete, without line ends and empty lines. Raises BadAnswer."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._add(data[start:end])
            start = end + 1
            line = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces.clear()
            self.pending = 0
            if line and not line.isspace():
                yield line
        if start < len(data):
            self._add(data[start:])

    def _add(self, piece: bytes) -> None:
        self.pending += len(piece)
        if self.pending > self._limit:
            raise BadAnswer(f"a watch event is longer than the limit of {format_size(self._limit)} bytes")
        self._pieces.append(piece)


_decoder = msgspec.json.Decoder(WatchEvent)


def parse_event(line: bytes) -> WatchEvent:
    """Raises BadAnswer if the line isn't an event: then it is unknown what was missed."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = line[:SHOWN].decode(errors="replace")
        more = "…" if len(line) > SHOWN else ""
        raise BadAnswer(f"a line of a watch isn't an event ({error}): {shown}{more}") from error


def check_object(item: Any) -> None:
    """Raises BadAnswer if the object has no `metadata` with a name and a resource version, or an odd namespace."""
    resource_version(item)
    name, namespace = item["metadata"].get("name"), item["metadata"].get("namespace")
    if not isinstance(name, str) or not name:
        raise BadAnswer(f"an object's metadata.name is {name!r}; a name is expected")
    if not isinstance(namespace, str | None):
        raise BadAnswer(f"the metadata.namespace of {name!r} is {namespace!r}; a name is expected")


def resource_version(item: Any) -> str:
    """The `metadata.resourceVersion` of an object or a list. Raises BadAnswer if there is none."""
    metadata = item.get("metadata") if isinstance(item, dict) else None
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(version, str) or not version:
        raise BadAnswer(f"metadata.resourceVersion is {version!r}; a version is expected")
    return version


def next_page(listed: JsonObject) -> str:
    """The `metadata.continue` of a list, which has a resource version; empty on its last page. Raises BadAnswer."""
    following = listed["metadata"].get("continue") or ""
    if not isinstance(following, str):
        raise BadAnswer(f"metadata.continue is {following!r}; a string is expected")
    return following
