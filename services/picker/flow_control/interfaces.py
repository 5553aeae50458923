"""The roles of flow-control plugins. A plugin is plain synchronous code; times are monotonic seconds."""

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from services.picker.flow_control.flow import Flow
from services.picker.flow_control.waiting import Waiting
from shared.plugin import Plugin, Role


class OrderingPolicy(Plugin):
    """Orders the requests of a flow. If it fails, the request is ordered by the time it came."""

    ROLES = frozenset({Role.ORDERING_POLICY})
    BY_RECEIPT: ClassVar[bool] = False
    """Whether requests with equal keys leave in the order of their receipt; else, in the order of their queueing."""

    def key(self, item: Waiting) -> float:
        """The request with the least key leaves first. Asked once, when the request is queued."""
        raise NotImplementedError


class FlowOrder:
    """The order in which the flows of one band are served. A band has one of its own.

    `flow.place` is for it to use.
    """

    def activated(self, flow: Flow) -> None:
        """The flow has requests again."""

    def deactivated(self, flow: Flow) -> None:
        """The flow has none any more."""

    def head_changed(self, flow: Flow) -> None:
        """Another request is the flow's first."""

    def dispatched(self, flow: Flow) -> None:
        """The flow was picked, and its first request left. `activated` holds until `deactivated` is called."""

    def dispatched_elsewhere(self, flow: Flow, requests: int) -> None:
        """Peers have dispatched so many of the flow, which is active here."""

    def pick(self, now: float) -> Flow | None:
        """An active flow; None where there is none."""
        raise NotImplementedError


class FairnessPolicy(Plugin):
    """Decides whose turn it is among the flows of a band. If it fails, any flow with requests has its turn."""

    ROLES = frozenset({Role.FAIRNESS_POLICY})
    BY_FLOW: ClassVar[bool] = True
    """Whether flows have queues of their own. Else the band is one queue, and `flow_order` isn't asked for."""

    def flow_order(self) -> FlowOrder:
        """An order for a band."""
        raise NotImplementedError

    def served(self, flow: int, tokens: int, now: float) -> None:
        """Requests of the flow with this hash have cost so many tokens: prompt tokens, and completion tokens twice."""

    def served_elsewhere(self, flow: int, tokens: int, now: float) -> None:
        """The same at a peer, as that says."""
        self.served(flow, tokens, now)


class UsageLimitPolicy(Plugin):
    """Says how full the pool may be for each band. If it fails, every band may fill it."""

    ROLES = frozenset({Role.USAGE_LIMIT_POLICY})
    RETRY: ClassVar[float | None] = None
    """Seconds after which a closed band is worth another look though nothing has happened; None for never."""
    PURE: ClassVar[bool] = False
    """Whether the ceilings depend on nothing but the saturation and the priorities, so that they needn't be asked for
    again while both are the same. A subclass states it anew."""

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """For each priority, which are in descending order, the saturation from which on the band is closed. Called
        once for each request that may be dispatched."""
        raise NotImplementedError


class Running(Struct, frozen=True):
    """A request that a model server works on."""

    id: str
    priority: int
    dispatched_at: float


class EvictionFilterPolicy(Plugin):
    """Says which running requests may be evicted. If it fails, none is."""

    ROLES = frozenset({Role.EVICTION_FILTER})

    def accepts(self, running: Running) -> bool:
        raise NotImplementedError


class EvictionOrderPolicy(Plugin):
    """Orders the requests that may be evicted. If it fails, none is."""

    ROLES = frozenset({Role.EVICTION_ORDER})

    def key(self, running: Running) -> tuple[float, float]:
        """The least goes first. Asked once for each request under a configuration."""
        raise NotImplementedError
