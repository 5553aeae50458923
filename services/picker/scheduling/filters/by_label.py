"""`by-label`: keeps the endpoints one of whose labels has one of some values. `label-selector-filter` does more."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.scheduling.labels import each
from services.picker.state.layout import Rows


class ByLabelParameters(Struct, frozen=True, rename="camel"):
    """The label and its values."""

    label: Annotated[str, Meta(min_length=1)]
    valid_values: tuple[str, ...] = ()
    """With the empty text among them, the label may be missing."""
    allows_no_label: bool = False

    def __post_init__(self) -> None:
        if not self.valid_values and not self.allows_no_label:
            raise ValueError("validValues: empty, and allowsNoLabel is false: nothing would pass")

    def hold(self, labels: Mapping[str, str]) -> bool:
        """Whether an endpoint with these labels stays."""
        value = labels.get(self.label)
        if value is None:
            return self.allows_no_label or "" in self.valid_values
        return value in self.valid_values


class ByLabelFilter(Filter):
    """The label's value is valid, or the label is missing and may be."""

    TYPE = "by-label"
    BOUNDED = True
    Parameters = ByLabelParameters
    parameters: ByLabelParameters

    def __init__(self, name: str, parameters: ByLabelParameters) -> None:
        super().__init__(name, parameters)
        self._condition = each(parameters.hold)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        return self._condition.keep(cycle.layout, rows)
