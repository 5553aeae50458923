"""How long messages were on their way beyond what is usual: the part of their age that the sender can't know.

Clocks of different machines don't agree, so the time on the way can't be measured, but its changes can: the smallest
difference of (received − sent) that a sender's messages had lately stands for an unhindered way, and what a message
has above that was spent waiting somewhere. Measured: after a stall of the server a client flushed 39 of 40 messages up
to 2.5 s late, all of which looked fresh.

A message can't be much quicker than that, whatever its sender says: one that claims to have been sent later than it can
have been isn't believed, for what comes after it would look late by as much. If nothing comes that contradicts it, the
clocks have moved: a machine that stood still, or a first message that had waited.

A sender that starts again may do so on another machine, whose clock is another, so each of its runs has a way of its
own. Within a run a message that was sent before the last one was overtaken, and is as late as it is: two connections,
of which one takes the place of the other, keep no order among them.
"""

from shared.limits import LIMITS

AHEAD = 0.5
"""Seconds by which a message may be quicker than the usual way."""
AHEAD_AT_FIRST = 10.0
"""The same while the usual way isn't known: the first message may have waited."""
AT_FIRST = 1.0
"""Seconds after a run's first message until its usual way is known: two heartbeats."""
UNCONTRADICTED = 1.0
"""Seconds without a message of the usual way after which quicker ones are believed."""
IMPLAUSIBLE = "it was sent at a time that doesn't go with its sender's other messages"


class _Run:
    __slots__ = ("ahead", "ahead_since", "before", "current", "heard", "since", "turned")

    def __init__(self, difference: float, received: float) -> None:
        self.since = received
        self.usual(difference, received)

    def usual(self, difference: float, received: float) -> None:
        """This is the usual way from now on."""
        self.heard = self.turned = received
        self.current = self.before = difference
        self.ahead: float | None = None
        """The difference of messages that are too quick, while nothing contradicts them."""
        self.ahead_since = received


class Transit:
    """The usual way of each run of a sender: the minimum over the last one half to one `window` of seconds.

    The window slides in halves, so a message costs the same however many came before it. A window follows clocks that
    drift apart (50 ppm is 3 ms a minute); after a silence the last usual way still holds. Beyond `most` runs, what
    further ones send counts as unhindered.
    """

    def __init__(self, window: float = 60.0, most: int = LIMITS.runs) -> None:
        self._most = most
        self._half = window / 2
        self._runs: dict[tuple[str, int], _Run] = {}
        self._full_until = float("-inf")

    def observe(self, sender: str, run: int, sent: float, received: float) -> float | None:
        """Seconds that a message spent beyond the usual way; `sent` and `received` are monotonic seconds. None where it
        can't have been sent then: such a message is `IMPLAUSIBLE`, and not to be used.

        The first message of a run counts as unhindered.
        """
        difference = received - sent
        known = self._runs.get((sender, run))
        if known is None:
            if self._has_room(received):
                self._runs[sender, run] = _Run(difference, received)
            return 0.0
        if not self._can_be(known, difference, received):
            return None
        known.heard = received
        if received - known.turned >= self._half:
            known.before, known.current, known.turned = known.current, difference, received
        elif difference < known.current:
            known.current = difference
        return max(0.0, difference - min(known.before, known.current))

    def _has_room(self, now: float) -> bool:
        """Whether another run can be kept in mind. Where there are too many, those go that weren't heard for two
        heartbeats; who goes on sending stays."""
        if len(self._runs) >= self._most and now >= self._full_until:
            self._full_until = now + AT_FIRST
            self.prune(now - AT_FIRST)
        return len(self._runs) < self._most

    def _can_be(self, known: _Run, difference: float, received: float) -> bool:
        """Whether a message can be as quick as that."""
        most = AHEAD if received - known.since >= AT_FIRST else AHEAD_AT_FIRST
        if difference >= min(known.before, known.current) - most:
            known.ahead = None
        elif known.ahead is None or abs(difference - known.ahead) > AHEAD:
            known.ahead, known.ahead_since = difference, received
            return False
        elif received - known.ahead_since < UNCONTRADICTED:
            return False
        else:
            known.usual(difference, received)
        return True

    def prune(self, before: float) -> None:
        """Forget what wasn't heard since `before`."""
        for run in [run for run, known in self._runs.items() if known.heard < before]:
            del self._runs[run]

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"<Transit runs={len(self._runs)}>"
