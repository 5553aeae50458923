"""Reads Envoy's access log for requests that failed without the client having seen a server's response.

A server can die after Envoy has received its response headers and before Envoy has passed them on. The response has
then begun, which rules out a retry, but the client only sees a 502 or a closed connection. A request that Envoy should
have retried and didn't looks the same to the client; only Envoy can tell both apart.
"""

import asyncio
import time
from pathlib import Path

import msgspec
from msgspec import Struct

BEGUN = "upstream_reset_after_response_started"
"""Prefix of Envoy's response code details if a server broke off its response."""
WITHIN = 5.0
"""Seconds to wait for a line; Envoy flushes its log now and then."""
_INTERVAL = 0.05


class Entry(Struct, frozen=True):
    """The fields of a line that matter here."""

    request_id: str | None = None
    details: str | None = None
    upstream: str | None = None


_decoder = msgspec.json.Decoder(Entry)


class AccessLog:
    """Envoy's log, read as it grows. It has the requests that went wrong, among lines of other kinds."""

    def __init__(self, path: Path, *, within: float = WITHIN) -> None:
        self._path = path
        self._within = within
        self._position = 0
        self._entries: dict[str, Entry] = {}

    async def responding_server(self, request_id: str) -> str:
        """The `address:port` of the server that broke off its response to this request; empty if none did, or if no
        line comes in time."""
        end = time.monotonic() + self._within
        while True:
            self._read()
            entry = self._entries.get(request_id)
            if entry is not None:
                return (entry.upstream or "") if (entry.details or "").startswith(BEGUN) else ""
            if time.monotonic() >= end:
                return ""
            await asyncio.sleep(_INTERVAL)

    def _read(self) -> None:
        """Read the complete lines that are new."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return
        complete = data[: data.rfind(b"\n") + 1]
        self._position += len(complete)
        for line in complete.splitlines():
            try:
                entry = _decoder.decode(line)
            except msgspec.MsgspecError:  # Envoy's own log
                continue
            if entry.request_id:
                self._entries[entry.request_id] = entry

    def __repr__(self) -> str:
        return f"<AccessLog {self._path}, {len(self._entries)} requests>"
