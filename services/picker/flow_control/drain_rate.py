"""How fast requests leave the queue, and how long it will take at this rate."""

from math import ceil, exp, inf

MAX_SECONDS = 60
"""What `seconds` says at most."""
_OVER = 10.0
"""Seconds over which the rate is averaged, the newest counting most."""


class DrainRate:
    """Requests a second."""

    def __init__(self) -> None:
        self._rate, self._at = 0.0, 0.0
        self.passed = 0
        """Requests that have left and aren't in the rate yet. `fold` is to be called a few times a second."""

    def fold(self, now: float) -> None:
        """Take those that have passed into the rate."""
        passed = now - self._at
        self._rate = (self._rate * exp(-passed / _OVER) if passed > 0.0 else self._rate) + self.passed / _OVER
        self._at, self.passed = now, 0

    def seconds(self, requests: int, now: float) -> int:
        """Until so many requests will have left, in whole seconds from 1 to `MAX_SECONDS`."""
        self.fold(now)
        wait = requests / self._rate if self._rate > 0 else inf if requests else 0.0
        return max(1, ceil(min(wait, MAX_SECONDS)))

    def __repr__(self) -> str:
        return f"<DrainRate {self._rate:.1f} a second>"
