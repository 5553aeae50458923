"""Saturation by stage: where prefill and decode have endpoints of their own, the fuller of the two counts."""

from collections.abc import Callable, Iterable

import numpy as np
from msgspec import Struct
from msgspec.structs import force_setattr

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import SaturationDetector
from services.picker.scheduling.labels import DECODE, PREFILL
from services.picker.state.inflight import Charge
from services.picker.state.layout import Layout, Rows
from shared.model import ROLE

_PREFILL = frozenset(PREFILL)
_DECODE = frozenset({*DECODE, ""})


class FullestStage(Struct, frozen=True):
    """The stage with the least room: requests wait for that."""

    name: str
    layout: Layout
    saturation: float
    in_flight: float
    """Requests at its endpoints."""
    holds: Callable[[Charge], bool]
    """Whether the end of a request with this charge makes room there."""


class Stages(Struct, frozen=True):
    """The endpoints of each stage. An endpoint that only encodes, or has an unknown role, belongs to neither."""

    prefill: Rows
    decode: Rows
    every: Rows
    judged: tuple[tuple[str, Rows], ...] = ()
    """The stages that have endpoints, by name. Where none has, all endpoints are judged together, as `pool`."""

    def __post_init__(self) -> None:
        stages = (("prefill", self.prefill), ("decode", self.decode))
        judged = tuple([(name, rows) for name, rows in stages if len(rows)])
        force_setattr(self, "judged", judged or (("pool", self.every),))

    @classmethod
    def of(cls, layout: Layout) -> "Stages":
        """The stages of a layout's candidates."""
        roles = [layout.endpoints[row].labels.get(ROLE, "") for row in layout.candidates.tolist()]
        return cls(
            prefill=_rows(layout, (role in _PREFILL for role in roles)),
            decode=_rows(layout, (role in _DECODE for role in roles)),
            every=layout.candidates,
        )

    def among(self, rows: Rows) -> "Stages":
        """The stages of some of these endpoints."""
        if rows is self.every:
            return self
        prefill, decode = (
            rows if stage is self.every else np.intersect1d(rows, stage) for stage in (self.prefill, self.decode)
        )
        return Stages(prefill, decode, rows)

    def saturations(self, detector: SaturationDetector, cycle: Cycle) -> dict[str, float]:
        """By stage."""
        return {name: detector.saturation(cycle, rows) for name, rows in self.judged}

    def saturation(self, detector: SaturationDetector, cycle: Cycle) -> float:
        """Of the fullest stage. Without endpoints, it is 1; NaN if the detector says so of any."""
        found = self.saturations(detector, cycle).values()
        return float(np.max(np.array([*found])))

    def room(self, detector: SaturationDetector, cycle: Cycle, ceiling: float, tokens: float) -> float:
        """Requests, of so many tokens each, that fit until the saturation reaches the ceiling: as many as fit on the
        stage with the least room, as a request goes through all of them. Without endpoints, it is 0."""
        return min([detector.room(cycle, rows, ceiling, tokens) if len(rows) else 0.0 for _, rows in self.judged])


def _rows(layout: Layout, chosen: Iterable[bool]) -> Rows:
    every = layout.candidates
    rows = every[np.fromiter(chosen, np.bool_, len(every))]
    return every if len(rows) == len(every) else rows
