"""Compares what a picker decides by with what its owners announce, and repairs what differs.

Messages converge by themselves: facts by digest and snapshot (`shared.bus.replica_state`), load because each message is
a whole table, placements by numbered batches with a digest (`services.picker.state.prefix_peers`). What is left is what
this process makes of them: the view of the facts, and the sums of load.
"""

from collections.abc import Iterator, Mapping

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.picker.admin.families import family
from services.picker.reports.reports import Parts
from shared.service.status import Repairs

log = structlog.get_logger(__name__)

INTERVAL = 5.0
"""Seconds between two comparisons."""
NAMED = 5


class Convergence(Collector):
    """The comparisons of one picker, and their metrics."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._due = 0.0
        self.found = {"view": 0, "load": 0}
        """Differences, by part; each is repaired at once."""

    def compare_if_due(self, now: float) -> None:
        """Compare if it is time. Called from time to time."""
        if now < self._due:
            return
        self._due = now + INTERVAL
        parts = self._parts
        facts = parts.replica.facts()
        if parts.replica.synced and (keys := parts.view.differs(facts)):
            self.found["view"] += 1
            log.error("view.differs", part="view", facts=len(keys), such_as=keys[:NAMED])
            parts.view.reset(facts)
        _ = parts.view.layout  # changed endpoints first
        if not parts.view.in_flight.check():
            self.found["load"] += 1
            log.error("view.differs", part="load")

    def repairs(self, now: float) -> Mapping[str, Repairs]:
        """By part."""
        peers = self._parts.prefixes.peers
        prefixes = Repairs(
            differs_for=round(peers.differs_for(now), 3), found=peers.differences, repaired=peers.repairs
        )
        own = {part: Repairs(found=found, repaired=found) for part, found in self.found.items()}
        return {**own, "prefixes": prefixes}

    def collect(self) -> Iterator[Metric]:
        parts = self.repairs(self._parts.handler.clock())
        for kind, name, text, values in (
            (
                GaugeMetricFamily,
                "differs_seconds",
                "Time for which a part of the view has differed from what its owners announce; 0 while it agrees",
                {part: repairs.differs_for for part, repairs in parts.items()},
            ),
            (
                CounterMetricFamily,
                "differences",
                "Lasting differences between a part of the view and what its owners announce",
                {part: repairs.found for part, repairs in parts.items()},
            ),
            (
                CounterMetricFamily,
                "repairs",
                "Differences that a reset has ended",
                {part: repairs.repaired for part, repairs in parts.items()},
            ),
        ):
            samples = [((part,), float(value)) for part, value in values.items()]
            yield from family(kind, f"pointsman_picker_view_{name}", text, ("part",), samples)

    def __repr__(self) -> str:
        return f"<Convergence {self.found}>"
