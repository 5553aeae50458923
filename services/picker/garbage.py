"""Searches for cyclic garbage when the search is short.

By itself, Python searches all objects again and again, 20 µs for each request under way: 0.2 s with 10 000, in which
nothing is served. What it looks for is rare, because requests leave no cycles. So only the youngest objects are
searched by themselves, which takes a few milliseconds; all objects when few requests are under way.
"""

import gc
from collections.abc import Callable

YOUNG = 10
"""Searches of the youngest objects that have to have been since all were searched."""
FEW = 200
"""Requests under way with which all objects may be searched."""
EVERY, LATEST = 60.0, 3600.0
"""Seconds between two searches of all objects, at least; and at most, however many requests are under way."""
_NEVER = 2**30


def search_young_only() -> None:
    """From now on, this process searches all objects only when `GarbageCollection` does."""
    gc.set_threshold(gc.get_threshold()[0], _NEVER, _NEVER)


class GarbageCollection:
    """Decides when all objects are searched. `open` tells how many requests are under way, `young` how often the
    youngest objects have been searched since."""

    def __init__(
        self,
        open: Callable[[], int],
        now: float,
        *,
        young: Callable[[], int] = lambda: gc.get_count()[1],
        search: Callable[[], object] = gc.collect,
    ) -> None:
        self._open, self._young, self._search = open, young, search
        self._at = now

    def collect_if_due(self, now: float) -> None:
        """Search all objects if it is time to. Call it from time to time."""
        passed = now - self._at
        if passed < EVERY or self._young() <= YOUNG:
            return
        if passed >= LATEST or self._open() <= FEW:
            self._search()
            self._at = now

    def __repr__(self) -> str:
        return f"<GarbageCollection, last at {self._at:.0f}>"
