"""`label-selector-filter`: keeps the endpoints whose labels a Kubernetes label selector matches."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.scheduling.labels import LabelCondition
from services.picker.state.layout import Rows


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
        self._condition = LabelCondition(self.parameters.matches)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        return self._condition.keep(cycle.layout, rows)
