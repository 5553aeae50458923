"""`topology-affinity-filter`: keeps the endpoints near the one that was picked first for the request."""

from typing import Literal

from msgspec import Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.scheduling.topology import LEVELS, Proximity, topology
from services.picker.state.layout import Rows
from shared.plugin import Input


class TopologyAffinityFilterParameters(Struct, frozen=True, rename="camel"):
    """How near."""

    min_affinity: Literal["host", "rack", "zone", "region"] = "host"
    topology_producer_name: str = ""


class TopologyAffinityFilter(Filter):
    """Those that share the level or a nearer one; all where there are none, or nothing is known."""

    TYPE = "topology-affinity-filter"
    BOUNDED = True
    Parameters = TopologyAffinityFilterParameters
    parameters: TopologyAffinityFilterParameters

    def __init__(self, name: str, parameters: TopologyAffinityFilterParameters | None = None) -> None:
        super().__init__(name, parameters)
        self._proximity = Proximity()
        self._least = LEVELS.index(self.parameters.min_affinity)

    @classmethod
    def consumes(cls, parameters: TopologyAffinityFilterParameters) -> tuple[Input, ...]:
        return (topology(parameters.topology_producer_name),)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        levels = self._proximity.levels(cycle, rows)
        if levels is None:
            return rows
        kept: Rows = rows[levels <= self._least]
        return kept if len(kept) else rows
