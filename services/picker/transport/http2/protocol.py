"""A connection on asyncio: reads, writes once per read, closes."""

import asyncio
from collections.abc import Callable
from typing import Any

from services.picker.body_buffer import MemoryBudget
from services.picker.http2_options import Http2Options
from services.picker.transport.calls import Methods
from services.picker.transport.http2.connection import Http2Connection
from services.picker.transport.http2.streams import StreamCount


class Http2Protocol(asyncio.Protocol):
    """One connection. `opened` and `closed` tell its server."""

    def __init__(
        self,
        methods: Methods,
        options: Http2Options,
        memory: MemoryBudget,
        streams: StreamCount,
        clock: Callable[[], float],
        *,
        opened: Callable[["Http2Protocol"], bool],
        closed: Callable[["Http2Protocol"], None],
    ) -> None:
        """`opened` returns whether the connection is served."""
        self.connection = Http2Connection(methods, options, memory, streams, now=clock(), wake=self._wake)
        self._options, self._clock = options, clock
        self._opened, self._closed = opened, closed
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self.peer = ""
        """The client's address, once it is known."""
        self._awake = False
        """Whether a flush is scheduled."""
        self._stuck_since: float | None = None
        """Since when the socket takes nothing, or is to close."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.peer = str(transport.get_extra_info("peername"))
        if not self._opened(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._options.send_buffer)
        self._flush()

    def data_received(self, data: bytes) -> None:
        more = self.connection.receive(data, self._clock())
        if more:
            self._transport.pause_reading()
            self._loop.call_soon(self._continue)
        self._flush()

    def _continue(self) -> None:
        """Read on in what has come, after others have had their turn."""
        more = self.connection.receive(b"", self._clock())
        self._flush()
        if more:
            self._loop.call_soon(self._continue)
        elif self._stuck_since is None and self._transport is not None:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The peer doesn't read: nothing more is read from it either."""
        self._stuck_since = self._clock()
        self.connection.hold()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self.connection.failure is None:
            self._stuck_since = None
            self.connection.release()
            if not self.connection.unfinished:  # otherwise `_continue` comes, and resumes
                self._transport.resume_reading()
            self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.connection.lost()
        self._closed(self)

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self._stuck_since is not None and now - self._stuck_since > self._options.stall_timeout:
            self.abort()
        else:
            self.connection.tick(now)

    def close(self) -> None:
        """Close when everything is written."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._awake = False
        connection, transport = self.connection, self._transport
        if transport is None:
            return
        if out := connection.out:
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            transport.write(data)
        failure = connection.failure
        if failure is not None:
            transport.close()
            if self._stuck_since is None:
                self._stuck_since = self._clock()

    def __repr__(self) -> str:
        return f"<Http2Protocol {self.connection!r}>"
