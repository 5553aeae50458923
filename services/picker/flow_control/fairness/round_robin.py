"""`round-robin-fairness-policy`: flows take turns, in the order of their ids; a heavier flow has more turns.

A turn has a place, `(round, id)`, and turns are taken in the order of their places. A flow that comes joins where the
turns are. What peers dispatch of a flow moves its next turn back, so that flows have equal turns over all pickers; no
further than `LEAD` rounds, so that a flow isn't shut out for what it got while no other flow wanted it.
"""

import heapq

from services.picker.flow_control.flow import Flow
from services.picker.flow_control.interfaces import FairnessPolicy, FlowOrder

LEAD = 100.0
"""Rounds."""


class _RoundRobin(FlowOrder):
    """`flow.place` is the round of a flow's next turn. Of its entries in the heap, the last one counts; the others are
    dead, also where they have the same round."""

    def __init__(self) -> None:
        self._turns: list[tuple[float, str, int, Flow]] = []
        self._put_so_far = 0
        self._entries: dict[Flow, int] = {}
        """The number of each active flow's entry that counts."""
        self._last: tuple[float, str] = (0.0, "")
        """The last turn."""
        self._latest = 0.0
        """The latest round that a flow was ever given."""

    def activated(self, flow: Flow) -> None:
        last_round, last_id = self._last
        self._put(flow, max(flow.place, last_round if flow.id > last_id else last_round + 1.0))

    def deactivated(self, flow: Flow) -> None:
        self._entries.pop(flow, None)
        if not self._entries:  # turns begin anew, with the first id, for all
            self._turns.clear()
            self._last = (self._latest, "")

    def dispatched(self, flow: Flow) -> None:
        self._last = (flow.place, flow.id)
        self._put(flow, flow.place + 1.0 / flow.weight)

    def dispatched_elsewhere(self, flow: Flow, requests: int) -> None:
        self._put(flow, max(flow.place, min(flow.place + requests / flow.weight, self._last[0] + LEAD)))

    def pick(self, now: float) -> Flow | None:
        while self._turns:
            _, _, number, flow = self._turns[0]
            if self._entries.get(flow) == number:
                return flow
            heapq.heappop(self._turns)
        return None

    def _put(self, flow: Flow, place: float) -> None:
        flow.place = place
        self._latest = max(self._latest, place)
        self._put_so_far += 1
        self._entries[flow] = self._put_so_far
        if len(self._turns) > 2 * len(self._entries) + 8:
            self._turns = [turn for turn in self._turns if self._entries.get(turn[3]) == turn[2]]
            heapq.heapify(self._turns)
        heapq.heappush(self._turns, (place, flow.id, self._put_so_far, flow))


class RoundRobinFairnessPolicy(FairnessPolicy):
    """The next flow with requests after the one that was last served."""

    TYPE = "round-robin-fairness-policy"

    def flow_order(self) -> FlowOrder:
        return _RoundRobin()
