"""A connection on asyncio: reads, writes once per read, closes."""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any

from services.picker.body_buffer import MemoryBudget
from services.picker.settings.http2_options import Http2Options
from services.picker.transport.calls import Methods
from services.picker.transport.http2.connection import Http2Connection
from services.picker.transport.http2.errors import flooded
from services.picker.transport.http2.held_bytes import UNCOUNTED
from services.picker.transport.http2.streams import StreamCount
from shared.tasks import LONG_TURN, Pace, Turns
from shared.tls import TooMuchOverhead

_BUSY = 100.0
"""For so many times as long as a long turn a connection counts as busy: what it sends waits behind what others send."""


class Reading(Pace):
    """The time in which the connections of a server read at once what comes. Busy connections have turns of their
    own."""

    __slots__ = ("busy",)

    def __init__(self) -> None:
        super().__init__()
        self.busy = Turns()


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
        turns: Turns,
        reading: Reading,
        opened: Callable[["Http2Protocol"], bool],
        closed: Callable[["Http2Protocol"], None],
    ) -> None:
        """`opened` returns whether the connection is served. By `turns`, the streams of all connections end; they share
        `reading`, too."""
        self.connection = Http2Connection(
            methods, options, memory, streams, now=clock(), wake=self._wake, timer=perf_counter
        )
        self._options, self._clock = options, clock
        self._turns, self._reading, self._opened, self._closed = turns, reading, opened, closed
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self.peer = ""
        """The client's address, once it is known."""
        self._awake = False
        """Whether a flush is scheduled."""
        self._going_on = False
        """Whether `_continue` waits for its turn."""
        self._busy_until = 0.0
        self._closing = self._ending = self._ticking = False
        """Whether nothing more is written; whether streams end by turns, because the connection is over, and because
        their time is."""
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
        if self._transport is None:
            return
        connection, reading, now = self.connection, self._reading, self._clock()
        if reading.left <= 0.0 or now < self._busy_until:
            connection.feed(data)
            more = True
        else:
            more = connection.receive(data, now)
            if reading.spend(connection.took):
                self._note_turn(now)
        if more:
            self._transport.pause_reading()
            self._go_on()
        self._flush()

    def _note_turn(self, now: float) -> None:
        """A turn may have been a long one."""
        took = self.connection.took
        if took > LONG_TURN:
            self._busy_until = now + _BUSY * took

    def _go_on(self) -> None:
        """Have the rest done after others have had their turn."""
        if not self._going_on:
            self._going_on = True
            busy = self._clock() < self._busy_until
            (self._reading.busy if busy else self._reading.turns).add(self._continue)

    def _continue(self) -> bool:
        """Read on in what has come, and send on what has waited."""
        self._going_on = False
        if not self._reads:
            return False
        now = self._clock()
        more = self.connection.receive(b"", now)
        self._note_turn(now)
        self._flush()
        if more:
            self._go_on()
        elif self._reads:
            self._transport.resume_reading()
        return False

    @property
    def _reads(self) -> bool:
        """Whether there is a peer, and it reads what it is sent."""
        return self._transport is not None and self._stuck_since is None

    def pause_writing(self) -> None:
        """The peer doesn't read: nothing more is read of what it sends or has sent."""
        self._stuck_since = self._clock()
        self.connection.hold()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self.connection.failure is None:
            self._stuck_since = None
            self.connection.release()
            if self.connection.unfinished:
                self._go_on()  # which resumes
            else:
                self._transport.resume_reading()
            self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.connection.note_unsent(0, self._clock())
        if isinstance(exc, TooMuchOverhead) and self.connection.failure is None:
            self.connection.fail(flooded(str(exc)))
        if self.connection.open:
            self._end_by_turns()
        else:
            self._end_streams()

    def _end_by_turns(self) -> None:
        """The connection is over: its streams end, and others have their turn in between."""
        if not self._ending:
            self._ending = True
            self._turns.add(self._end_streams)

    def _end_streams(self) -> bool:
        self._ending = self.connection.lost()
        if not self._ending and self._transport is None:
            self.connection.forget()
            self._closed(self)
        return self._ending

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self._transport is None or self._ticking:
            return
        if self._stuck_since is not None and now - self._stuck_since > self._options.stall_timeout:
            self.abort()
        elif self._tick():
            self._turns.add(self._tick)

    def _tick(self) -> bool:
        transport = self._transport
        self._ticking = transport is not None and self.connection.tick(self._clock(), transport.get_write_buffer_size())
        return self._ticking

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
            if not self._closing:
                transport.write(data)
        if connection.failure is not None and not self._closing:
            self._closing = True
            transport.close()
            if connection.open:
                self._end_by_turns()
            if self._stuck_since is None:
                self._stuck_since = self._clock()
        if connection.dropped and transport.get_write_buffer_size() > UNCOUNTED:
            transport.abort()

    def __repr__(self) -> str:
        return f"<Http2Protocol {self.connection!r}>"
