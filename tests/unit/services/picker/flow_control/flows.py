"""Controllers, requests and pools for tests of flow control."""

from collections.abc import Callable, Mapping, Sequence
from math import inf, nan
from typing import Any

import msgspec
import numpy as np

from services.picker.flow_control.controller import FlowController
from services.picker.flow_control.fairness.global_strict import GlobalStrictFairnessPolicy
from services.picker.flow_control.fairness.program_aware import ProgramAwareFairness
from services.picker.flow_control.fairness.round_robin import RoundRobinFairnessPolicy
from services.picker.flow_control.interfaces import UsageLimitPolicy
from services.picker.flow_control.ordering.edf import EdfOrderingPolicy
from services.picker.flow_control.ordering.fcfs import FcfsOrderingPolicy
from services.picker.flow_control.ordering.slo_deadline import SloDeadlineOrderingPolicy
from services.picker.flow_control.settings import BandSettings, FlowControlSettings
from services.picker.flow_control.usage_limits.static import StaticUsageLimitPolicy
from services.picker.flow_control.waiting import Outcome, Waiting
from shared.bus.messages import QueueTable

ORDERINGS = {policy.TYPE: policy for policy in (FcfsOrderingPolicy, EdfOrderingPolicy, SloDeadlineOrderingPolicy)}
FAIRNESS = {
    policy.TYPE: policy for policy in (GlobalStrictFairnessPolicy, RoundRobinFairnessPolicy, ProgramAwareFairness)
}
ROUND_ROBIN = RoundRobinFairnessPolicy.TYPE
FCFS = FcfsOrderingPolicy.TYPE

Row = tuple[int, int, int, int, int, int, int, int]


class Room:
    """A pool that takes `capacity` requests at once."""

    def __init__(self, capacity: float = inf) -> None:
        self.capacity = capacity
        self.in_flight = 0
        self.broken = False

    @property
    def empty(self) -> bool:
        return self.capacity == 0

    @property
    def saturation(self) -> float:
        if self.broken:
            return nan
        return self.in_flight / self.capacity if self.capacity else 1.0

    def room(self, ceiling: float) -> float:
        return ceiling * self.capacity - self.in_flight


def band(fairness: str = ROUND_ROBIN, ordering: str = FCFS, **limits: int) -> BandSettings:
    return BandSettings(ORDERINGS[ordering](ordering), FAIRNESS[fairness](fairness), **limits)


def settings(
    template: BandSettings | None = None,
    bands: Mapping[int, BandSettings] | None = None,
    usage_limits: UsageLimitPolicy | None = None,
    **more: Any,
) -> FlowControlSettings:
    template = template or band()
    return FlowControlSettings(
        bands=bands or {},
        template=template,
        negative_template=more.pop("negative_template", template),
        usage_limits=usage_limits or StaticUsageLimitPolicy("static"),
        **more,
    )


class Picker:
    """A controller with its pool; what it was told of its requests is in `told`."""

    def __init__(self, how: FlowControlSettings | None = None, pool: Room | None = None, id: str = "me") -> None:
        self.pool = pool or Room()
        self.now = 0.0
        self.outcomes: list[tuple[Any, Outcome]] = []
        self.running: list[Waiting] = []
        self.failures: list[str] = []
        self.when_dispatched: Callable[[Waiting], None] = lambda item: None
        self.controller = FlowController(
            how or settings(), self._outcome, id=id, failed=lambda plugin, error: self.failures.append(str(error))
        )

    def _outcome(self, item: Waiting, outcome: Outcome) -> None:
        self.outcomes.append((item.owner, outcome))
        if outcome is Outcome.DISPATCHED:
            self.pool.in_flight += 1
            self.running.append(item)
            self.when_dispatched(item)

    def add(self, owner: Any, flow: str = "a", priority: int = 0, **more: Any) -> Waiting:
        """Queue a request; fails where it is refused."""
        item = Waiting(flow, priority, more.pop("received_at", self.now), owner=owner, **more)
        refused = self.controller.enqueue(item, self.now)
        assert refused is None, refused
        return item

    def offer(self, priority: int = 0, **more: Any) -> Outcome | None:
        return self.controller.enqueue(Waiting(more.pop("flow", "a"), priority, self.now, **more), self.now)

    def arrives(self, item: Waiting) -> Outcome | None:
        """The outcome of a request that needn't wait, or is refused; None if it waits."""
        if self.controller.passes(item, self.now, self.pool):
            return Outcome.DISPATCHED
        return self.controller.enqueue(item, self.now)

    def dispatch(self) -> list[Any]:
        """Let go who may; their names."""
        before = len(self.outcomes)
        self.controller.dispatch(self.now, self.pool)
        return [owner for owner, outcome in self.outcomes[before:] if outcome is Outcome.DISPATCHED]

    def finish(self, item: Waiting, prompt_tokens: int = 0, completion_tokens: int = 0) -> None:
        self.running.remove(item)
        self.pool.in_flight -= 1
        self.controller.finished(item, self.now, prompt_tokens, completion_tokens)


def tell(
    pickers: Mapping[str, Picker], senders: Sequence[str] | None = None, now: float = 0.0, sent: float = 0
) -> None:
    """Have pickers hear of each other."""
    tables = {name: pickers[name].controller.table(now) for name in senders or pickers}
    for name, table in tables.items():
        assert table.fault() is None
        for other, picker in pickers.items():
            if other != name:
                picker.controller.apply(name, 1, sent or now, table, now)


def table(*rows: Row) -> QueueTable:
    """A table of rows (priority, flow, requests, tokens, age, running, dispatched, served)."""
    columns = list(zip(*rows, strict=True)) or [()] * 8
    packed = [
        np.array(column, kind).tobytes() for column, kind in zip(columns, ["<i4", "<u8", *["<u4"] * 6], strict=True)
    ]
    return QueueTable(**dict(zip(QueueTable.__struct_fields__, packed, strict=True)))


def parameters(kind: type[Any], **given: Any) -> Any:
    """An instance of a plugin type with these parameters, as a document gives them."""
    return kind("plugin", msgspec.convert(given, kind.Parameters))


def drained(take: Callable[[], list[Any]]) -> list[Any]:
    """All that `take` gives until it gives nothing."""
    everything: list[Any] = []
    while taken := take():
        everything += taken
    return everything
