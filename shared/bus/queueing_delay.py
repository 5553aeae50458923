"""Estimates how long messages were delayed on their way: the part of their age that the sender can't know.

Clocks of different machines differ, so a one-way delay can't be measured, but its changes can, as in LEDBAT (RFC 6817).
The smallest recent difference of (received - sent) is a sender's base delay. What a message has above it is its
queueing delay. Measured: after a stall of the server, a client flushed 39 of 40 messages up to 2.5 s late.

A message that is quicker than the base delay counts as undelayed. It could be forged, to make the sender's later
messages look late, so it lowers the base delay only after a second in which no message was much later: the first
message had been queued, a queue drains, or a machine stood still and its clock with it.

A clock that stood still beside its sender, as that of a suspended virtual machine does, makes all later messages look
late, until the window has passed. A queue that neither drains nor grows looks the same, and there the values are old.

A restarted sender may run on another machine, so each run has a base delay of its own. Within a run, an overtaken
message is as late as it looks: two connections, one of which replaces the other, keep no common order.
"""

from shared.limits import LIMITS

AHEAD = 0.5
"""Seconds by which a message has to be later than a quicker one to contradict it."""
UNCONTRADICTED = 1.0
"""Seconds without a contradicting message after which quicker messages are believed: two heartbeats."""
MAX_AHEAD = 10.0
"""Seconds by which a message may be quicker than the base delay."""
IMPLAUSIBLE = "it was sent at a time that doesn't go with its sender's other messages"


class _Candidate:
    """A lower base delay, while nothing contradicts it."""

    __slots__ = ("difference", "lowest", "since")

    def __init__(self, difference: float, since: float) -> None:
        self.difference = self.lowest = difference
        """The first one, and the lowest since."""
        self.since = since


class _Run:
    __slots__ = ("_before", "_candidate", "_current", "_turned", "last_seen")

    def __init__(self, difference: float, received: float) -> None:
        self._candidate: _Candidate | None = None
        self._rebase(difference, received)

    def _rebase(self, difference: float, received: float) -> None:
        """Take this difference as the base delay."""
        self.last_seen = self._turned = received
        self._current = self._before = difference

    def take(self, difference: float, received: float, half: float) -> float | None:
        """As `QueueingDelays.observe`."""
        self.last_seen = received
        base = min(self._before, self._current)
        candidate = self._candidate
        if candidate is not None:
            if difference > candidate.lowest + AHEAD:
                candidate = None
            elif received - candidate.since >= UNCONTRADICTED:
                base = candidate.difference
                self._rebase(base, received)
                # what was quicker still has been there for less time
                candidate = _Candidate(candidate.lowest, received) if candidate.lowest < base else None
        if difference < base:
            candidate = candidate or _Candidate(difference, received)
            candidate.lowest = min(candidate.lowest, difference)
        self._candidate = candidate
        if difference < base - MAX_AHEAD:
            return None
        latest = max(difference, base)
        if received - self._turned >= half:
            self._before, self._current, self._turned = self._current, latest, received
        elif latest < self._current:
            self._current = latest
        return latest - base


class QueueingDelays:
    """The base delay of each run of a sender: the minimum over the last one half to one `window` of seconds.

    The window slides in halves, so the cost of a message doesn't depend on the number of earlier ones. It follows
    clocks that drift apart (50 ppm is 3 ms a minute). After a silence, the last base delay still holds. Beyond `limit`
    runs, messages of further ones count as undelayed.
    """

    def __init__(self, window: float = 60.0, limit: int = LIMITS.max_runs) -> None:
        self._half = window / 2
        self._limit = limit
        self._runs: dict[tuple[str, int], _Run] = {}
        self._full_until = float("-inf")

    def observe(self, sender: str, run: int, sent: float, received: float) -> float | None:
        """The queueing delay of a message in seconds; `sent` and `received` are monotonic seconds. None if it can't
        have been sent at that time: such a message is `IMPLAUSIBLE` and must not be used.

        The first message of a run counts as undelayed.
        """
        difference = received - sent
        known = self._runs.get((sender, run))
        if known is not None:
            return known.take(difference, received, self._half)
        if self._has_room(received):
            self._runs[sender, run] = _Run(difference, received)
        return 0.0

    def _has_room(self, now: float) -> bool:
        """Whether another run can be tracked, after those that were silent for two heartbeats are forgotten."""
        if len(self._runs) >= self._limit and now >= self._full_until:
            self._full_until = now + UNCONTRADICTED
            self.prune(now - UNCONTRADICTED)
        return len(self._runs) < self._limit

    def prune(self, before: float) -> None:
        """Forget runs that have been silent since `before`."""
        for run in [run for run, known in self._runs.items() if known.last_seen < before]:
            del self._runs[run]

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"<QueueingDelays runs={len(self._runs)}>"
