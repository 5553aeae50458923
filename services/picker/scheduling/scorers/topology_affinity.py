"""`topology-affinity-scorer`: the nearer to the endpoint that was picked first for the request, the better."""

import numpy as np
from msgspec import Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Scorer
from services.picker.scheduling.topology import Proximity, topology
from services.picker.state.layout import Floats, Rows
from shared.plugin import Input

SCORES = np.array([1.0, 0.2, 0.05, 0.02, 0.0])
"""Host, rack, zone, region, none of them: as fast as KV caches are sent (the reference's)."""


class TopologyAffinityScorerParameters(Struct, frozen=True, rename="camel"):
    """Whose topologies."""

    topology_producer_name: str = ""


class TopologyAffinityScorer(Scorer):
    """By the nearest level in common; 0 where it isn't known."""

    TYPE = "topology-affinity-scorer"
    BOUNDED = True
    Parameters = TopologyAffinityScorerParameters
    parameters: TopologyAffinityScorerParameters

    def __init__(self, name: str, parameters: TopologyAffinityScorerParameters | None = None) -> None:
        super().__init__(name, parameters)
        self._proximity = Proximity()

    @classmethod
    def consumes(cls, parameters: TopologyAffinityScorerParameters) -> tuple[Input, ...]:
        return (topology(parameters.topology_producer_name),)

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        levels = self._proximity.levels(cycle, rows)
        return np.zeros(len(rows)) if levels is None else SCORES[levels]
