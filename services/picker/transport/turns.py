"""Work that is too long for one turn of the event loop, in steps: others have their turn in between."""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

Step = Callable[[], bool]
"""Does a part of some work; whether more is left. It doesn't raise."""


class Turns:
    """The work of all streams. Light work, such as the answers to requests that have waited, gets a share of each turn;
    of heavy work a turn does one step, and one piece of it at a time: what a piece is, its stream says."""

    MAX_SECONDS = 0.005
    """Seconds of a turn for light work."""

    def __init__(self) -> None:
        self._light: deque[Step] = deque()
        self._heavy: deque[Step] = deque()
        self._scheduled = False

    def add(self, step: Step, *, heavy: bool = False) -> None:
        """Do this from the next turn on."""
        (self._heavy if heavy else self._light).append(step)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        light, heavy = self._light, self._heavy
        end = perf_counter() + self.MAX_SECONDS
        try:
            for _ in range(len(light)):
                step = light.popleft()
                if step():
                    light.append(step)
                if perf_counter() >= end:
                    break
            if heavy:
                step = heavy.popleft()
                if step():
                    heavy.appendleft(step)
        finally:
            self._scheduled = bool(light or heavy)
            if self._scheduled:
                asyncio.get_running_loop().call_soon(self._run)

    def __repr__(self) -> str:
        return f"<Turns {len(self._light)} light, {len(self._heavy)} heavy>"
