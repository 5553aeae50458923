"""`label-selector-filter`: keeps the endpoints whose labels a Kubernetes label selector matches."""

from collections.abc import Set
from typing import Literal

import numpy as np
from msgspec import Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.scheduling.labels import LabelCondition
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

    @property
    def positive(self) -> bool:
        """Whether an endpoint without the label doesn't match."""
        return self.operator in ("In", "Exists")


class LabelSelector(Struct, frozen=True, rename="camel"):
    """A Kubernetes `LabelSelector`; an empty one matches everything."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Requirement, ...] = ()

    def mask(self, layout: Layout) -> Mask:
        """Which endpoints it matches. The work is that of reading each endpoint's labels once, and the requirements
        once, however many there are of both."""
        named = [Requirement(key, "In", (value,)) for key, value in self.match_labels.items()]
        requirements = (*named, *self.match_expressions)
        rows = _rows(layout, {requirement.key for requirement in requirements})
        mask: Mask = np.ones(len(layout), np.bool_)
        for requirement in requirements:
            known = rows.get(requirement.key)
            if known is None:
                if requirement.positive:
                    return np.zeros(len(layout), np.bool_)
                continue
            having = np.zeros(len(layout), np.bool_)
            for value in requirement.values or known:
                having[known.get(value, [])] = True
            mask &= having if requirement.positive else ~having
        return mask


def _rows(layout: Layout, keys: Set[str]) -> dict[str, dict[str, list[int]]]:
    """The endpoints with each value of these labels."""
    rows: dict[str, dict[str, list[int]]] = {}
    for row, endpoint in enumerate(layout.endpoints):
        labels = endpoint.labels
        for key in labels.keys() & keys:
            rows.setdefault(key, {}).setdefault(labels[key], []).append(row)
    return rows


class LabelSelectorFilter(Filter):
    """The selector is evaluated once for each layout, not for each request."""

    TYPE = "label-selector-filter"
    BOUNDED = True
    ALIASES = ("by-label-selector",)
    Parameters = LabelSelector
    parameters: LabelSelector

    def __init__(self, name: str, parameters: LabelSelector | None = None) -> None:
        super().__init__(name, parameters)
        self._condition = LabelCondition(self.parameters.mask)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        return self._condition.keep(cycle.layout, rows)
