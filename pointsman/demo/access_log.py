"""What Envoy says of a request that it has not passed a server's answer on for, from its access log.

Between a server's first bytes and the client there is a moment in which Envoy has the answer's head and still shows it
to the picker. A server that dies then has begun to answer, which ends the retries, and yet the client sees nothing of
it: a 502 of Envoy's, or a closed connection. So looks a request, too, that Envoy should have sent on and did not; Envoy
knows which of both it was.
"""

import asyncio
import time
from pathlib import Path

import msgspec
from msgspec import Struct

BEGUN = "upstream_reset_after_response_started"
"""How Envoy's response code details begin when a server broke off after its head had come."""
WITHIN = 5.0
"""Seconds for a line to be written; Envoy keeps lines back for a moment."""
_LOOK = 0.05


class Entry(Struct, frozen=True):
    """What of a line of deploy/envoy's access log is of interest."""

    request_id: str | None = None
    details: str | None = None
    upstream: str | None = None


_decoder = msgspec.json.Decoder(Entry)


class AccessLog:
    """Envoy's log, read as it grows. It has the requests that went wrong, among lines of other kinds."""

    def __init__(self, path: Path, *, within: float = WITHIN) -> None:
        self._path = path
        self._within = within
        self._read = 0
        self._entries: dict[str, Entry] = {}

    async def begun_by(self, request_id: str) -> str:
        """The `address:port` of the server that broke off its answer to this request after it had begun; empty when
        that isn't what happened, or when nothing is known of the request in time."""
        end = time.monotonic() + self._within
        while True:
            entry = self._find(request_id)
            if entry is not None or time.monotonic() >= end:
                break
            await asyncio.sleep(_LOOK)
        return (entry.upstream or "") if entry is not None and (entry.details or "").startswith(BEGUN) else ""

    def _find(self, request_id: str) -> Entry | None:
        if request_id not in self._entries:
            self._read_on()
        return self._entries.get(request_id)

    def _read_on(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            if not line.startswith(b"{"):
                continue  # Envoy's own log
            try:
                entry = _decoder.decode(line)
            except msgspec.MsgspecError:
                continue
            if entry.request_id:
                self._entries[entry.request_id] = entry

    def __repr__(self) -> str:
        return f"<AccessLog {self._path}, {len(self._entries)} requests>"
