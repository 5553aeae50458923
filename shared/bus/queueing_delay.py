"""Estimates how long messages were delayed on their way: the part of their age that the sender can't know.

Clocks of different machines differ, so a one-way delay can't be measured, but its changes can, as in LEDBAT (RFC 6817).
The smallest recent difference of (received - sent) is a sender's base delay. What a message has above it is its
queueing delay. Measured: after a stall of the server, a client flushed 39 of 40 messages up to 2.5 s late.

A message can't be much quicker than the base delay. One that claims to be would make later messages look late, so it
isn't believed, nor are several that claim a little more each. If nothing contradicts such messages for a while, a clock
has changed: a machine stood still, or the first message had been queued.

A restarted sender may run on another machine, so each run has a base delay of its own. Within a run, an overtaken
message is as late as it looks: two connections, one of which replaces the other, keep no common order.
"""

from shared.limits import LIMITS

AHEAD = 0.5
"""Seconds by which a message may be quicker than the base delay."""
AHEAD_AT_FIRST = 10.0
"""The same while the base delay isn't known: the first message may have been queued."""
SINKING = 0.05
"""Seconds by which the base delay that messages are compared with can sink in half a window. Clocks drift apart by much
less: 15 ms if one is slewed."""
AT_FIRST = 1.0
"""Seconds after a run's first message until its base delay is known: two heartbeats."""
UNCONTRADICTED = 1.0
"""Seconds without a contradicting message after which quicker messages are believed."""
IMPLAUSIBLE = "it was sent at a time that doesn't go with its sender's other messages"


class _Run:
    __slots__ = ("ahead", "ahead_since", "anchor", "before", "current", "last_seen", "settled", "since", "turned")

    def __init__(self, difference: float, received: float) -> None:
        self.since = received
        self.settled = False
        """Whether the base delay is known."""
        self.rebase(difference, received)

    def rebase(self, difference: float, received: float) -> None:
        """Take this difference as the base delay."""
        self.last_seen = self.turned = received
        self.current = self.before = self.anchor = difference
        self.ahead: float | None = None
        """The difference of messages that are too quick, while nothing contradicts them."""
        self.ahead_since = received


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
        if known is None:
            if self._has_room(received):
                self._runs[sender, run] = _Run(difference, received)
            return 0.0
        if not self._is_plausible(known, difference, received):
            return None
        known.last_seen = received
        if received - known.turned >= self._half:
            known.before, known.current, known.turned = known.current, difference, received
            known.anchor = max(min(known.before, difference), known.anchor - SINKING)
        elif difference < known.current:
            known.current = difference
        return max(0.0, difference - min(known.before, known.current))

    def _has_room(self, now: float) -> bool:
        """Whether another run can be tracked, after those that were silent for two heartbeats are forgotten."""
        if len(self._runs) >= self._limit and now >= self._full_until:
            self._full_until = now + AT_FIRST
            self.prune(now - AT_FIRST)
        return len(self._runs) < self._limit

    def _is_plausible(self, known: _Run, difference: float, received: float) -> bool:
        """Whether a message can be as quick as that."""
        if not known.settled and received - known.since >= AT_FIRST:
            known.settled, known.anchor = True, min(known.before, known.current)
        if difference >= known.anchor - (AHEAD if known.settled else AHEAD_AT_FIRST):
            known.ahead = None
        elif known.ahead is None or abs(difference - known.ahead) > AHEAD:
            known.ahead, known.ahead_since = difference, received
            return False
        elif received - known.ahead_since < UNCONTRADICTED:
            return False
        else:
            known.rebase(difference, received)
        return True

    def prune(self, before: float) -> None:
        """Forget runs that have been silent since `before`."""
        for run in [run for run, known in self._runs.items() if known.last_seen < before]:
            del self._runs[run]

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"<QueueingDelays runs={len(self._runs)}>"
