"""Whether peers' requests of a higher band keep the lower bands here from dispatch.

They do, so that the highest priority goes first over all pickers. A peer that can't dispatch, or that reports requests
that don't exist, mustn't stop the lower bands for good: peers that leave room unused are overdue, and hold nothing back
for a while.
"""

from math import inf

from services.picker.flow_control.peers import Peers

OVERDUE = 3.0
"""Seconds for which peers may leave room unused."""
RESPITE = 30.0
"""Seconds for which peers that were overdue keep nobody back, at least."""
NEARLY_FULL = 0.75
"""The part of its ceiling from which on the pool's saturation can be the work of peers that dispatch. Below it, the
room is more than tables and loads that are on their way account for."""
_ROUNDING = 1e-6


class _Claim:
    """What peers have in a band."""

    __slots__ = ("overdue_since", "progress", "unused")

    def __init__(self, progress: int) -> None:
        self.progress = progress
        self.unused = 0.0
        """Seconds of unused room since they used any."""
        self.overdue_since: float | None = None


class StrictPriority:
    """The claims of peers to bands of which this picker has no requests. The clock of one claim runs at a time: that of
    the highest, which keeps back all below it."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._version = -1
        self._claims: dict[int, _Claim] = {}
        self._running: _Claim | None = None
        self._counted_until = 0.0

    def holds_back(self, priority: int, full: float, now: float) -> bool:
        """Whether peers' requests of this band keep lower ones here from dispatch, while there is room. `full` is the
        saturation, as a part of the band's ceiling."""
        self._forget()
        progress = self._peers.progress(priority)
        claim = self._claims.get(priority)
        if claim is not None and claim.overdue_since is not None:
            if progress == claim.progress or now < claim.overdue_since + RESPITE:
                return False
            claim = None
        if claim is None:
            claim = self._claims[priority] = _Claim(progress)
        if full >= NEARLY_FULL:
            self._credit(priority, claim)
        if claim is self._running:
            claim.unused += now - self._counted_until
        self._running, self._counted_until = claim, now
        if claim.unused < OVERDUE - _ROUNDING:
            return True
        claim.overdue_since, claim.progress, self._running = now, progress, None
        return False

    def pause(self) -> None:
        """Nothing waits here, or there is no room: the clock stands until something is kept back."""
        self._running = None

    def no_room(self) -> None:
        """The pool is full: peers leave nothing unused."""
        self.pause()
        self._forget()
        for priority, claim in self._claims.items():
            if claim.overdue_since is None:
                self._credit(priority, claim)

    def next_look(self) -> float:
        """When peers will be overdue, if they go on leaving room unused."""
        return inf if self._running is None else self._counted_until + OVERDUE - self._running.unused

    def _credit(self, priority: int, claim: _Claim) -> None:
        """They have used room, if they have dispatched anything."""
        progress = self._peers.progress(priority)
        if progress != claim.progress:
            claim.progress, claim.unused = progress, 0.0

    def _forget(self) -> None:
        """The claims to bands in which nothing waits at peers any more."""
        if self._version != self._peers.version:
            self._version = self._peers.version
            for priority in self._claims.keys() - self._peers.waiting.keys():
                del self._claims[priority]

    def __repr__(self) -> str:
        overdue = sum(claim.overdue_since is not None for claim in self._claims.values())
        return f"<StrictPriority {len(self._claims)} claims, {overdue} overdue>"
