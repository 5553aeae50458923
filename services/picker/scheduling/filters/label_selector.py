"""`label-selector-filter`: keeps the endpoints whose labels a Kubernetes label selector matches."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from msgspec import Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.state.layout import Layout, Mask, Rows


class Requirement(Struct, frozen=True):
    """One of `matchExpressions`."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.operator in ("In", "NotIn") and not self.values:
            raise ValueError(f"operator {self.operator!r} needs values")
        if self.operator in ("Exists", "DoesNotExist") and self.values:
            raise ValueError(f"operator {self.operator!r} takes no values")

    def matches(self, labels: Mapping[str, str]) -> bool:
        found = labels.get(self.key) in self.values if self.values else self.key in labels
        return found is (self.operator in ("In", "Exists"))


class LabelSelector(Struct, frozen=True, rename="camel"):
    """A Kubernetes `LabelSelector`; an empty one matches everything."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )


class LabelSelectorFilter(Filter):
    """The selector is evaluated once for each layout, not for each request."""

    TYPE = "label-selector-filter"
    BOUNDED = True
    ALIASES = ("by-label-selector",)
    Parameters = LabelSelector
    parameters: LabelSelector

    def __init__(self, name: str, parameters: LabelSelector | None = None) -> None:
        super().__init__(name, parameters)
        self._layout = Layout()
        self._kept: Mask = np.zeros(0, np.bool_)
        self._all = False

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        layout = cycle.layout
        if layout is not self._layout:
            matches = (self.parameters.matches(endpoint.labels) for endpoint in layout.endpoints)
            self._kept = np.fromiter(matches, np.bool_, len(layout))
            self._layout = layout
            self._all = bool(np.logical_and.reduce(self._kept))
        kept: Rows = rows if self._all else rows[self._kept[rows]]
        return kept
