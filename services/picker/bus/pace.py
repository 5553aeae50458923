"""Limits how often a picker publishes changes: each pick at once, but on average at most one message per interval.

Peers can't consider picks that they don't know of. At low rates, a message per pick costs little. At high rates, picks
share messages, and no picker sends more of them than its interval allows.
"""

import asyncio

from shared.tasks import set_within

BURST = 4
"""Messages that may follow each other at once after a quiet time."""


class Pace:
    """The pace of one kind of message. Times are seconds of any clock that is the same for all calls."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._free_at = float("-inf")
        """From when on nothing counts that was sent before."""
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """There is something to publish at once."""
        self._woken.set()

    def wait(self, now: float) -> float:
        """Seconds until the next message may be sent."""
        return max(self._free_at - (BURST - 1) * self.interval - now, 0.0)

    def sent(self, now: float) -> None:
        """A message has been sent."""
        self._free_at = max(self._free_at, now) + self.interval

    async def turn(self, now: float) -> None:
        """Wait until the next check for something to publish: at most an interval, or, after more messages than that,
        until a message may be sent again."""
        if (rest := self.wait(now)) > 0:
            await asyncio.sleep(rest)
        else:
            await set_within(self._woken, self.interval)
        self._woken.clear()

    def __repr__(self) -> str:
        return f"<Pace of {self.interval} s>"
