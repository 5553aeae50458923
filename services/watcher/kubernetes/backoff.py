"""When to try again, and where time and chance come from."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from msgspec import Struct


class Timing(Struct, frozen=True):
    """A clock, a sleep and a dice; tests have others."""

    clock: Callable[[], float] = time.monotonic
    """Seconds, never going back."""
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    random: Callable[[], float] = random.random
    """Uniform between 0 and 1."""

    def spread(self, value: float, share: float = 0.2) -> float:
        """The value, give or take the share of it: so that what began together doesn't stay together."""
        return value * (1 + share * (2 * self.random() - 1))


class Backoff:
    """Pauses that double from `first` to `longest`, each shortened by up to a half at random."""

    def __init__(self, first: float, longest: float, timing: Timing) -> None:
        self._first = first
        self._longest = longest
        self._timing = timing
        self.failures = 0
        """How many since the last `reset`."""

    def next(self) -> float:
        """Count a failure; the seconds to wait after it, at most `longest`."""
        exponent = min(self.failures, 60)  # 2.0**60 pauses are beyond any limit, and no float overflows
        self.failures += 1
        return min(self._longest, self._first * 2.0**exponent) * (1 - 0.5 * self._timing.random())

    def reset(self) -> None:
        """It works again."""
        self.failures = 0

    def __repr__(self) -> str:
        return f"<Backoff {self._first:g}-{self._longest:g} s, {self.failures} failures>"
