"""Limits the admin port's connections and the time of a request.

The port is for probes, Prometheus and operators. Half-sent requests and half-read pages hold file descriptors that the
process needs.
"""

from asyncio import Transport
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol


class AdminProtocol(H11Protocol):
    """A connection. Of too many the one ends that has done nothing for longest; each ends that takes too long."""

    TIMEOUT = 30.0
    """Seconds for a request and its answer, and between two."""
    MAX_CONNECTIONS = 128
    """Connections at once."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn's is
        super().connection_made(transport)
        self.since = self.loop.time()
        self._watched = self.cycle
        self._timer = self.loop.call_later(self.TIMEOUT, self._check)
        if len(self.connections) > self.MAX_CONNECTIONS:
            others = (cast("AdminProtocol", other) for other in self.connections if other is not self)
            min(others, key=lambda other: other.since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    def _check(self) -> None:
        """End the connection unless a request has begun since the last look."""
        if self.cycle is self._watched:
            self.transport.abort()
            return
        self._watched = self.cycle
        self._timer = self.loop.call_later(self.TIMEOUT, self._check)

    def __repr__(self) -> str:
        return f"<AdminProtocol with {self.client}>"


def bounded(timeout: float, limit: int) -> type[AdminProtocol]:
    """The protocol with these limits: uvicorn takes a class."""
    return type("BoundedAdminProtocol", (AdminProtocol,), {"TIMEOUT": timeout, "MAX_CONNECTIONS": limit})
