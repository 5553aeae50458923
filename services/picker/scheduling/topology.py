"""How near endpoints are to one another, as columns: host, rack, zone, region."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from services.picker.scheduling.cycle import Cycle
from services.picker.state.layout import Floats, Rows
from services.picker.state.topology import TOPOLOGY, Topology
from shared.plugin import Input

LEVELS = ("host", "rack", "zone", "region")
"""The nearest first."""
FAR = len(LEVELS)
"""No level in common."""


def topology(producer: str) -> Input:
    """The need of a plugin whose parameter names the extractor of topologies."""
    return Input(TOPOLOGY, optional=True, parameter="topologyProducerName", producer=producer)


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


def _level(value: object, level: str) -> str | None:
    if not isinstance(value, Topology):
        return None
    return getattr(value, "hostname" if level == "host" else level) or None


def _numbered(values: Iterable[str | None]) -> npt.NDArray[np.intp]:
    numbers: dict[str | None, int] = {None: -1}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.intp)
