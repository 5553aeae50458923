"""`topology-affinity-filter` and `topology-affinity-scorer`: prefer endpoints near the one that was picked first for
the request, by host, rack, zone and region."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter, Scorer
from services.picker.state.layout import Floats, Rows
from services.picker.state.topology import TOPOLOGY, Topology
from shared.plugin import Input

LEVELS = ("host", "rack", "zone", "region")
"""The nearest first."""
FAR = len(LEVELS)
"""No level in common."""
SCORES = np.array([1.0, 0.2, 0.05, 0.02, 0.0])
"""Of each level, and of none: as fast as KV caches are sent (the reference's)."""


class Proximity:
    """The nearest level that endpoints share with the one that was picked first for the request."""

    def __init__(self) -> None:
        self._at: Floats = np.zeros(0)
        self._places: list[npt.NDArray[np.intp]] = []
        """By level: equal numbers for endpoints at one place; -1 where it isn't known."""

    def levels(self, cycle: Cycle, rows: Rows) -> npt.NDArray[np.intp] | None:
        """Positions in `LEVELS`, or `FAR`, of these rows; None where nothing is known of the other endpoint."""
        picked = next((run.picked for run in cycle.runs.values() if run.picked), None)
        if picked is None:
            return None
        column = cycle.view.columns.objects(TOPOLOGY)
        if column.at is not self._at:
            self._places = [_numbered(_level(value, level) for value in column.values) for level in LEVELS]
            self._at = column.at
        peer = [int(places[picked[0]]) for places in self._places]
        if max(peer) < 0:
            return None
        nearest = np.full(len(rows), FAR, np.intp)
        for level in reversed(range(FAR)):
            if peer[level] >= 0:
                nearest[self._places[level][rows] == peer[level]] = level
        cycle.note("TopologyLevel", rows, nearest.astype(np.float64))
        return nearest


class TopologyAffinityFilterParameters(Struct, frozen=True, rename="camel"):
    """How near."""

    min_affinity: Literal["host", "rack", "zone", "region"] = "host"
    topology_producer_name: str = ""


class TopologyAffinityFilter(Filter):
    """Those that share the level or a nearer one; all where there are none, or nothing is known."""

    TYPE = "topology-affinity-filter"
    BOUNDED = True
    PREFERS = True
    Parameters = TopologyAffinityFilterParameters
    parameters: TopologyAffinityFilterParameters

    def __init__(self, name: str, parameters: TopologyAffinityFilterParameters | None = None) -> None:
        super().__init__(name, parameters)
        self._proximity = Proximity()
        self._least = LEVELS.index(self.parameters.min_affinity)

    @classmethod
    def consumes(cls, parameters: TopologyAffinityFilterParameters) -> tuple[Input, ...]:
        return (_topology(parameters.topology_producer_name),)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        levels = self._proximity.levels(cycle, rows)
        if levels is None:
            return rows
        kept: Rows = rows[levels <= self._least]
        return kept if len(kept) else rows


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
        return (_topology(parameters.topology_producer_name),)

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        levels = self._proximity.levels(cycle, rows)
        return np.zeros(len(rows)) if levels is None else SCORES[levels]


def _topology(producer: str) -> Input:
    """The need of a plugin whose parameter names the extractor of topologies."""
    return Input(TOPOLOGY, optional=True, parameter="topologyProducerName", producer=producer)


def _level(value: object, level: str) -> str | None:
    if not isinstance(value, Topology):
        return None
    return getattr(value, "hostname" if level == "host" else level) or None


def _numbered(values: Iterable[str | None]) -> npt.NDArray[np.intp]:
    numbers: dict[str | None, int] = {None: -1}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.intp)
