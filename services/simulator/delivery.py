"""Writes responses, whole or in pieces, and applies faults to them."""

import asyncio
import json
from typing import NoReturn

from aiohttp import web

from services.simulator.exposition import filler
from services.simulator.faults import AnyFault, Close, ContentType, Huge, Trickle, Truncate

_CHUNK = 64 * 1024


class Closed(Exception):
    """A fault has closed the connection."""


class ResponseWriter:
    """Writes the response to one request."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.fault: AnyFault | None = None
        self._headers: dict[str, str] = {}
        self._response: web.StreamResponse | None = None
        self.sent = 0
        """Bytes of the body so far."""
        self.spoiled = False
        """Whether a fault has cut the response short."""

    def header(self, name: str, value: str) -> None:
        """Add a header, before the response has begun."""
        self._headers[name] = value

    async def whole(self, body: bytes, content_type: str, status: int = 200) -> web.StreamResponse:
        """Send a whole response. Raises `Closed` if a fault closes the connection."""
        fault = self.fault
        headers = {**self._headers, "content-type": fault.value if isinstance(fault, ContentType) else content_type}
        if isinstance(fault, Truncate):
            body = body[: _half(body) if fault.after is None else fault.after]
            self.spoiled = True
        if not isinstance(fault, Trickle | Close | Huge):
            self.sent = len(body)
            return web.Response(body=body, status=status, headers=headers)
        if isinstance(fault, Close) and not fault.after:
            self.close()
        size = max(fault.size, len(body)) if isinstance(fault, Huge) else len(body)
        headers["content-length"] = str(size)
        response = self._response = web.StreamResponse(status=status, headers=headers)
        await response.prepare(self._request)
        if isinstance(fault, Close):
            await self._put(body[: fault.after])
            self.close()
        await self._put(body)
        left = size - len(body)
        filling = filler("", "", _CHUNK).encode()
        while left > 0:
            await self._put(filling[:left])
            left -= len(filling)
        return response

    async def begin(self, content_type: str) -> None:
        """Send the headers of a streamed response. Raises `Closed`."""
        fault = self.fault
        if isinstance(fault, Close) and not fault.after:
            self.close()
        headers = {**self._headers, "content-type": fault.value if isinstance(fault, ContentType) else content_type}
        self._response = web.StreamResponse(headers=headers)
        await self._response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        """Send a piece of a streamed response, or what a fault leaves of it. Raises `Closed`."""
        fault = self.fault
        if self.spoiled:
            return
        if not isinstance(fault, Truncate | Close):
            await self._put(data)
            return
        await self._put(_first_event(data) if fault.after is None else data[: fault.after - self.sent])
        if fault.after is None or self.sent >= fault.after:
            self.spoiled = True
            if isinstance(fault, Close):
                self.close()

    async def end(self) -> web.StreamResponse:
        """End the streamed response, which is complete for HTTP."""
        assert self._response is not None, "begin comes before end"
        await self._response.write_eof()
        return self._response

    def close(self) -> NoReturn:
        """Close the connection. Raises `Closed`."""
        self.spoiled = True
        if self._request.transport is not None:
            self._request.transport.close()
        raise Closed

    async def _put(self, data: bytes) -> None:
        assert self._response is not None, "begin comes before write"
        if isinstance(self.fault, Trickle):
            for start in range(0, len(data), self.fault.piece):
                await self._response.write(data[start : start + self.fault.piece])
                await asyncio.sleep(self.fault.interval)
        elif data:
            await self._response.write(data)
        self.sent += len(data)

    def __repr__(self) -> str:
        return f"<ResponseWriter to {self._request.path}, {self.sent} bytes sent, fault {self.fault}>"


def _half(body: bytes) -> int:
    """The middle of the body, but not the end of a line, where it would look complete."""
    cut = len(body) // 2
    return cut - 1 if body[cut - 1 : cut] == b"\n" else cut


def _first_event(data: bytes) -> bytes:
    """The first of several server-sent events that are written at once."""
    event, end, _ = data.partition(b"\n\n")
    return event + end


def received_headers(request: web.Request) -> str:
    """The request headers as received, as a JSON list of pairs for a header."""
    return json.dumps([[name.decode("latin-1"), value.decode("latin-1")] for name, value in request.raw_headers])
