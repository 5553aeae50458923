"""Calls back at the earliest of the times that it was set to."""

import asyncio
from collections.abc import Callable
from math import inf


class Alarm:
    """One call for all times that were set since the last call. Times are those of `clock`."""

    def __init__(self, call: Callable[[], None], clock: Callable[[], float]) -> None:
        self._call, self._clock = call, clock
        self._at = inf
        self._handle: asyncio.Handle | None = None

    def set(self, at: float) -> None:
        """Call no later than at this time. If it has passed, call in the next turn of the event loop."""
        if at >= self._at:
            return
        self.cancel()
        self._at = at
        delay, loop = at - self._clock(), asyncio.get_running_loop()
        self._handle = loop.call_soon(self._fire) if delay <= 0 else loop.call_later(delay, self._fire)

    def cancel(self) -> None:
        """Don't call."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle, self._at = None, inf

    def _fire(self) -> None:
        self._handle, self._at = None, inf
        self._call()

    def __repr__(self) -> str:
        return f"<Alarm {'not set' if self._handle is None else self._at}>"
