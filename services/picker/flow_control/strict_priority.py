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


class StrictPriority:
    """The claims of peers to bands of which this picker has no requests. The room that they leave unused counts for all
    of them together: a peer may name another band at any time."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._version = -1
        self._progress: dict[int, int] = {}
        """What peers had dispatched in the bands that they claim, when that counted last."""
        self._unused = 0.0
        """Seconds of unused room since they used any."""
        self._overdue_since: float | None = None
        self._running = False
        """Whether they keep something back, and the clock runs."""
        self._counted_until = 0.0

    def holds_back(self, priority: int, full: float, now: float) -> bool:
        """Whether peers' requests of this band keep lower ones here from dispatch, while there is room. `full` is the
        saturation, as a part of the band's ceiling."""
        self._forget()
        progress = self._peers.progress(priority)
        if self._overdue_since is not None:
            if progress == self._progress.get(priority) or now < self._overdue_since + RESPITE:
                return False
            self._overdue_since, self._unused = None, 0.0
        self._progress.setdefault(priority, progress)
        if full >= NEARLY_FULL:
            self._credit(priority)
        if self._running:
            self._unused += now - self._counted_until
        self._running, self._counted_until = True, now
        if self._unused < OVERDUE - _ROUNDING:
            return True
        self._overdue_since, self._running = now, False
        self._progress = {claimed: self._peers.progress(claimed) for claimed in self._peers.waiting}
        return False

    def pause(self) -> None:
        """Nothing waits here, or there is no room: the clock stands until something is kept back."""
        self._running = False

    def no_room(self) -> None:
        """The pool is full: peers leave nothing unused."""
        self.pause()
        self._forget()
        if self._overdue_since is None:
            for priority in self._progress:
                self._credit(priority)

    def next_look(self) -> float:
        """When peers will be overdue, if they go on leaving room unused."""
        return self._counted_until + OVERDUE - self._unused if self._running else inf

    def _credit(self, priority: int) -> None:
        """They have used room, if they have dispatched anything."""
        progress = self._peers.progress(priority)
        if progress != self._progress[priority]:
            self._progress[priority], self._unused = progress, 0.0

    def _forget(self) -> None:
        """The claims to bands in which nothing waits at peers any more."""
        if self._version != self._peers.version:
            self._version = self._peers.version
            for priority in self._progress.keys() - self._peers.waiting.keys():
                del self._progress[priority]

    def __repr__(self) -> str:
        state = "overdue" if self._overdue_since is not None else f"{self._unused:.1f} s unused"
        return f"<StrictPriority {len(self._progress)} claims, {state}>"
