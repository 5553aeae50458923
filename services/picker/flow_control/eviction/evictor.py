"""Evicts running requests that may be evicted, when a band of a higher priority waits for room."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import count as counter
from math import inf

from services.picker.flow_control.band import OnPolicyFailure
from services.picker.flow_control.controller import BlockedBand
from services.picker.flow_control.eviction.feedback import Feedback
from services.picker.flow_control.eviction.reclamation import Reclamation
from services.picker.flow_control.eviction.victims import count, victims
from services.picker.flow_control.interfaces import EvictionFilterPolicy, EvictionOrderPolicy, Running
from services.picker.flow_control.stages import FullestStage
from services.picker.state.inflight import Charge
from services.picker.state.layout import Layout


class Evictor:
    """The running requests that the filter accepts. `issued` counts evictions. Another configuration changes the
    policies, not what runs."""

    def __init__(
        self, accepts: EvictionFilterPolicy, order: EvictionOrderPolicy, grace: float, failed: OnPolicyFailure
    ) -> None:
        """`grace` is how long the saturation takes to show the end of a request, in seconds."""
        self.issued = 0
        self._accepts, self._order, self._failed = accepts, order, failed
        self._running: dict[str, tuple[Running, Charge, Callable[[], None]]] = {}
        self._priorities: Counter[int] = Counter()
        """Running requests by priority."""
        self._ids = counter()
        self._in_vain: tuple[Layout, str, int] | None = None
        """The layout, stage and band for which nothing that runs makes room. Its charges only become fewer."""
        self._reclamation = Reclamation(grace)
        self._feedback = defaultdict[str, Feedback](Feedback)
        """By stage; empty since there was room."""

    def use(self, accepts: EvictionFilterPolicy, order: EvictionOrderPolicy, grace: float) -> None:
        """Decide by other policies from now on. Requests that these don't accept stay."""
        self._accepts, self._order, self._in_vain = accepts, order, None
        self._reclamation.grace = grace

    def track(self, priority: int, now: float, charge: Charge, evict: Callable[[], None]) -> str:
        """A request runs with this charge; `evict` ends it. Its id here, empty if it may not be evicted."""
        running = Running(str(next(self._ids)), priority, now)
        try:
            if not self._accepts.accepts(running):
                return ""
        except Exception as error:  # noqa: BLE001 - a policy's failure is told, and keeps the request running
            self._failed(self._accepts, error)
            return ""
        self._running[running.id] = running, charge, evict
        self._in_vain = None
        self._feedback.clear()
        self._priorities[priority] += 1
        return running.id

    def ended(self, id: str, now: float) -> None:
        """The request has ended."""
        self._drop(id)
        self._reclamation.ended(id, now)

    def make_room(self, blocked: Sequence[BlockedBand], stage: FullestStage, now: float) -> int:
        """Evict for the highest of the bands that wait for room, unless earlier evictions are still to show, or showed
        that they can't make room; how many. Only requests that take room on the fullest stage go."""
        feedback = self._feedback[stage.name]
        feedback.observe(stage.saturation)
        if not blocked:
            self._feedback.clear()
        if not self._reclamation.open(now) or not blocked or not self._running:
            return 0
        band = blocked[0]
        place = stage.layout, stage.name, band.priority
        if min(self._priorities) >= band.priority or place == self._in_vain:
            return 0
        if feedback.futile(stage.saturation, band.ceiling, len(self._running), now):
            return 0
        running = [running for running, charge, _ in self._running.values() if stage.holds(charge)]
        if not running:
            self._in_vain = place
            return 0
        most = count(stage.saturation, band.ceiling, stage.in_flight, self._reclamation.pending)
        try:
            chosen = victims(running, most, band.priority, self._accepts, self._order)
        except Exception as error:  # noqa: BLE001 - a policy's failure is told, and evicts nothing
            self._failed(self._order, error)
            return 0
        for victim in chosen:
            evict = self._drop(victim.id)
            assert evict is not None
            self._reclamation.evicted(victim.id, stage.saturation / stage.in_flight, now)
            self.issued += 1
            evict()
        if chosen:
            feedback.evicted(len(chosen), stage.saturation)
        return len(chosen)

    def _drop(self, id: str) -> Callable[[], None] | None:
        """Forget a running request. Returns what ends it; None if it isn't there."""
        running, _, evict = self._running.pop(id, (None, None, None))
        if running is not None:
            self._priorities[running.priority] -= 1
            if not self._priorities[running.priority]:
                del self._priorities[running.priority]
        return evict

    def next_look(self) -> float:
        """When another eviction may be possible though nothing has happened; infinite for never."""
        return self._reclamation.next_look() if self._running else inf

    def __repr__(self) -> str:
        return f"<Evictor {len(self._running)} running, {self._reclamation!r}>"
