"""Evicts running requests that may be evicted, when a band of a higher priority waits for room."""

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
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
        self._ordered: list[tuple[tuple[float, float], int, Running]] | None = []
        """In the order in which they go: key, number as they came, request. At most half of them have ended. None after
        a change or a failure of the policy, until the order is needed."""
        self._layout: Layout | None = None
        self._in_vain = defaultdict[str, dict[str, str]](dict)
        """Of that layout, by stage: the running requests that take no room there, and the endpoint that served them.
        Charges on the same endpoints only become fewer."""
        self._exhausted = set[str]()
        """The stages of that layout on which nothing that runs takes room."""
        self._undecided = False
        """Whether the last decision has to be continued."""
        self._reclamation = Reclamation(grace)
        self._feedback = defaultdict[str, Feedback](Feedback)
        """By stage; empty since there was room."""

    def use(self, accepts: EvictionFilterPolicy, order: EvictionOrderPolicy, grace: float) -> None:
        """Decide by other policies from now on. Requests that these don't accept stay."""
        self._accepts, self._order, self._ordered = accepts, order, None
        self._in_vain.clear()
        self._exhausted.clear()
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
        self._insert(running)
        self._exhausted.clear()
        self._feedback.clear()
        self._priorities[priority] += 1
        return running.id

    def ended(self, id: str, now: float) -> None:
        """The request has ended."""
        self._drop(id)
        self._reclamation.ended(id, now)

    def make_room(self, blocked: Sequence[BlockedBand], fullest: Callable[[], FullestStage], now: float) -> int:
        """Evict for the highest of the bands that wait for room, unless earlier evictions are still to show, or showed
        that they can't make room; how many. Only requests that take room on the fullest stage go."""
        self._undecided = False
        shown = self._reclamation.open(now)
        if not blocked:
            self._feedback.clear()
            return 0
        if not self._running:
            return 0
        band, stage = blocked[0], fullest()
        feedback = self._feedback[stage.name]
        feedback.observe(stage.saturation)
        if not shown or min(self._priorities) >= band.priority:
            return 0
        if feedback.futile(stage.saturation, band.ceiling, len(self._running), now):
            return 0
        most = count(stage.saturation, band.ceiling, stage.in_flight, self._reclamation.pending)
        if not most:
            return 0
        if stage.layout is not self._layout:
            self._layout = stage.layout
            self._in_vain.clear()
            self._exhausted.clear()
        if stage.name in self._exhausted:
            return 0
        in_vain = self._in_vain[stage.name]

        def takes_room(running: Running) -> bool:
            charge = self._running[running.id][1]
            if stage.holds(charge):
                in_vain.pop(running.id, None)  # it has moved here
                return True
            in_vain[running.id] = charge.endpoint_id
            return False

        try:
            chosen = victims(self._except(in_vain), most, band.priority, self._accepts, takes_room)
        except Exception as error:  # noqa: BLE001 - a policy's failure is told, and evicts nothing
            self._failed(self._order, error)
            return 0
        if chosen is None:
            self._undecided = True
            return 0
        if not chosen and len(in_vain) == len(self._running):
            self._exhausted.add(stage.name)
        for victim in chosen:
            evict = self._drop(victim.id)
            assert evict is not None
            self._reclamation.evicted(victim.id, stage.saturation / stage.in_flight, now)
            self.issued += 1
            evict()
        if chosen:
            feedback.evicted(len(chosen), stage.saturation)
        return len(chosen)

    def moved(self) -> None:
        """The charge of a running request has moved to another endpoint."""
        self._exhausted.clear()

    def _entry(self, running: Running) -> tuple[tuple[float, float], int, Running]:
        return self._order.key(running), int(running.id), running

    def _insert(self, running: Running) -> None:
        """Put a new request in its place."""
        ordered = self._ordered
        if ordered is None:
            return
        try:
            insort(ordered, self._entry(running))
        except Exception:  # noqa: BLE001 - a policy's failure is told when the order is needed
            self._ordered = None
        if len(ordered) > 2 * len(self._running):
            ordered[:] = [entry for entry in ordered if entry[2].id in self._running]

    def _except(self, in_vain: dict[str, str]) -> Iterator[Running]:
        """The others, in the order in which they go. Raises what the policy raises."""
        if self._ordered is None:
            self._ordered = sorted([self._entry(running) for running, _, _ in self._running.values()])
        tracked = self._running
        for _, _, running in self._ordered:
            id = running.id
            if id in tracked and (id not in in_vain or in_vain[id] != tracked[id][1].endpoint_id):
                yield running

    def _drop(self, id: str) -> Callable[[], None] | None:
        """Forget a running request. Returns what ends it; None if it isn't there."""
        running, _, evict = self._running.pop(id, (None, None, None))
        if running is not None:
            for in_vain in self._in_vain.values():
                in_vain.pop(id, None)
            self._priorities[running.priority] -= 1
            if not self._priorities[running.priority]:
                del self._priorities[running.priority]
        return evict

    def next_look(self) -> float:
        """When another eviction may be possible though nothing has happened; infinite for never."""
        if self._undecided:
            return 0.0
        return self._reclamation.next_look() if self._running else inf

    def __repr__(self) -> str:
        return f"<Evictor {len(self._running)} running, {self._reclamation!r}>"
