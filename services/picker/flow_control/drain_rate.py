"""How fast requests leave the queue, and how long it will take at this rate."""

from math import ceil, exp, inf

MOST_SECONDS = 60
"""What `seconds` says at most."""
_OVER = 10.0
"""Seconds over which the rate is averaged, the newest counting most."""


class DrainRate:
    """Requests a second."""

    def __init__(self) -> None:
        self._rate, self._at = 0.0, 0.0

    def note(self, now: float) -> None:
        """A request has left."""
        passed = now - self._at
        self._rate = (self._rate * exp(-passed / _OVER) if passed > 0.0 else self._rate) + 1 / _OVER
        self._at = now

    def seconds(self, requests: int, now: float) -> int:
        """Until so many requests will have left, in whole seconds from 1 to `MOST_SECONDS`."""
        rate = self._of(now)
        wait = requests / rate if rate > 0 else inf if requests else 0.0
        return max(1, ceil(min(wait, MOST_SECONDS)))

    def _of(self, now: float) -> float:
        return self._rate * exp(-max(now - self._at, 0.0) / _OVER)

    def __repr__(self) -> str:
        return f"<DrainRate {self._rate:.1f} a second>"
