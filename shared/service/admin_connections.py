"""Limits the admin port's connections, the time of a request, and what is read of requests at once.

The port is for probes, Prometheus and operators. Half-sent requests and half-read pages hold file descriptors that the
process needs, and requests of thousands of tiny chunks or headers its event loop.
"""

from asyncio import Transport
from typing import ClassVar, cast

import h11
import structlog
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from shared.tasks import Turns

PIECE = 4096
"""Bytes that are read at once: 700 chunks of a byte, some 2 ms. A request's headers are read when they are whole."""
TURN = 0.002
"""Seconds in which pieces of all connections are read, before other work has its turn."""


class _Reading(FlowControl):
    """uvicorn's flow control of a connection. Nothing is received while received bytes aren't read."""

    held = False

    def hold(self) -> None:
        """Called when there are such bytes."""
        self.held = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def release(self) -> None:
        """All are read."""
        self.held = False
        if not self.read_paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def resume_reading(self) -> None:
        if self.held:
            self.read_paused = False
        else:
            super().resume_reading()


class AdminProtocol(H11Protocol):
    """A connection. Among too many, the longest idle one without a whole request ends; if more than half are being
    answered, the one whose request came first. One that takes too long ends."""

    TIMEOUT = 30.0
    """Seconds for a request and its answer, and between two."""
    MAX_CONNECTIONS = 128
    """Connections at once."""
    TURNS: ClassVar[Turns] = Turns(TURN)
    """Of all connections of a port."""

    flow: _Reading
    cycle: RequestResponseCycle | None  # type: ignore[assignment]  # None before the first request

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn's is
        super().connection_made(transport)
        self.flow = _Reading(transport)
        self._unread = bytearray()
        self._queued = self._reading = self._pipelined = self._ended = False
        self.since = self.loop.time()
        """When it began, its last request came, or its last answer ended."""
        self._watched = self.cycle
        self._timer = self.loop.call_later(self.TIMEOUT, self._check)
        if len(self.connections) > self.MAX_CONNECTIONS:
            others = [cast("AdminProtocol", other) for other in self.connections if other is not self]
            answered = [other for other in others if other.is_answered]
            # Clients that keep all others busy can't have each new one ended before it has asked.
            crowd = answered if 2 * len(answered) > len(others) else [each for each in others if not each.is_answered]
            min(crowd, key=lambda other: other.since).transport.abort()

    @property
    def is_answered(self) -> bool:
        """Whether a whole request has come whose answer hasn't ended."""
        return self.cycle is not None and not (self.cycle.more_body or self.cycle.response_complete)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._unread.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        self.flow.hold()
        self._queue()

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn always ends the connection
        """A client that sends nothing more gets the answer that it waits for. Returns whether there is one."""
        self._ended = bool(self._unread) or self._pipelined or self._is_asked()
        return self._ended

    def read_piece(self) -> bool:
        """Parse some received bytes, or take a pipelined request that is parsed already. Whether there is more."""
        piece = bytes(self._unread[:PIECE])
        del self._unread[:PIECE]
        self._pipelined = self._queued = False
        if self.transport.is_closing():
            return False
        self._reading, before = True, self.cycle
        try:
            if piece:
                super().data_received(piece)
            else:
                super().handle_events()
        except Exception:  # noqa: BLE001 - as the event loop does: a mistake costs only this connection
            structlog.get_logger().exception("admin.connection_failed")
            self.transport.abort()
        self._reading = False
        if self.cycle is not before:
            self.since = self.loop.time()
        if self._unread:
            self.flow.hold()  # uvicorn resumes the transport itself behind a body that nobody wants
        else:
            self.flow.release()
        self._close_if_ended()
        self._queued = not self.transport.is_closing() and self._readable()
        return self._queued

    def handle_events(self) -> None:
        """Read requests; uvicorn would begin one that is behind another with the end of that one's answer."""
        if self._reading:
            super().handle_events()
        else:
            self._pipelined = True

    def send_400_response(self, msg: str) -> None:
        """End a request that isn't HTTP. If a response has begun, no error response is sent."""
        cycle = None if self.cycle is None or self.cycle.response_complete else self.cycle
        is_head = cycle is not None and cycle.scope["method"] == "HEAD"  # uvicorn would send a text, which HEAD forbids
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not is_head:
            if cycle is not None:  # its own answer comes too late
                cycle.disconnected = True
                cycle.message_event.set()
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()
        self._close_if_ended()
        self._queue()

    def _is_asked(self) -> bool:
        """Whether a whole request has come whose answer hasn't begun."""
        whole = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        return whole and self.cycle is not None and not self.cycle.response_started

    def _close_if_ended(self) -> None:
        if (
            self._ended
            and not (self._unread or self._pipelined)
            and (self.cycle is None or self.cycle.response_complete)
        ):
            self.transport.close()

    def _queue(self) -> None:
        if not self._queued and self._readable():
            self._queued = True
            self.TURNS.add(self.read_piece)

    def _readable(self) -> bool:
        """What follows a whole request is read after its answer."""
        return (self._pipelined or bool(self._unread)) and self.conn.their_state is not h11.DONE

    def _check(self) -> None:
        """End the connection unless a request has begun since the last check."""
        if self.cycle is self._watched:
            self.transport.abort()
            return
        self._watched = self.cycle
        self._timer = self.loop.call_later(self.TIMEOUT, self._check)

    def __repr__(self) -> str:
        return f"<AdminProtocol with {self.client}>"


def bounded(timeout: float, limit: int) -> type[AdminProtocol]:
    """The protocol with these limits: uvicorn takes a class."""
    limits = {"TIMEOUT": timeout, "MAX_CONNECTIONS": limit, "TURNS": Turns(TURN)}
    return type("BoundedAdminProtocol", (AdminProtocol,), limits)
