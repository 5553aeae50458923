"""When to retry, and the source of time and randomness."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from msgspec import Struct

from services.watcher.kubernetes.errors import ErrorKind, KubernetesError
from services.watcher.kubernetes.settings import KubernetesSettings

SLOW = frozenset({ErrorKind.FORBIDDEN, ErrorKind.NOT_FOUND, ErrorKind.REFUSED})
"""Errors that last until somebody corrects them. They are retried slowly."""


class Timing(Struct, frozen=True):
    """Clock, sleep and randomness; tests replace them."""

    clock: Callable[[], float] = time.monotonic
    """Seconds, never decreasing."""
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    random: Callable[[], float] = random.random
    """Uniform between 0 and 1."""

    def jitter(self, value: float, share: float = 0.2) -> float:
        """The value, plus or minus up to a share of it, so that processes don't act in step."""
        return value * (1 + share * (2 * self.random() - 1))


class Backoff:
    """Exponential backoff: pauses double from `initial` to `maximum`, each shortened by up to a half at random."""

    def __init__(self, initial: float, maximum: float, timing: Timing) -> None:
        self._initial = initial
        self._maximum = maximum
        self._timing = timing
        self.failures = 0
        """Failures since the last `reset`."""

    def next(self) -> float:
        """Count a failure. Returns the seconds to wait after it, at most `maximum`."""
        exponent = min(self.failures, 60)  # avoids an overflow; 2.0**60 is beyond any limit
        self.failures += 1
        return min(self._maximum, self._initial * 2.0**exponent) * (1 - 0.5 * self._timing.random())

    def after(self, error: KubernetesError, settings: KubernetesSettings) -> float:
        """Count a failure. Returns the seconds to wait after this error; `Retry-After` may make it more."""
        pause = self.next()
        if error.kind in SLOW:
            pause = self._timing.jitter(settings.kubernetes_refused_interval)
        if error.retry_after is not None:
            pause = max(pause, min(error.retry_after, settings.kubernetes_max_retry_after))
        return pause

    def reset(self) -> None:
        """Something has succeeded."""
        self.failures = 0

    def __repr__(self) -> str:
        return f"<Backoff {self._initial:g}-{self._maximum:g} s, {self.failures} failures>"
