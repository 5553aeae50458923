"""`low-battery-filter`: leaves out servers whose battery is low, unless all are."""

from typing import Annotated

from msgspec import Meta, Struct

from battery_plugins.labels import LabelColumn
from pointsman.api import Cycle, Endpoint, Filter, Rows


class LowBatteryParameters(Struct, frozen=True, rename="camel"):
    """Percent of its charge that a battery has to have."""

    least: Annotated[float, Meta(ge=0, le=100)] = 20.0


class LowBatteryFilter(Filter):
    """`charge ≥ least`; a server without the label `charge` needs no battery."""

    TYPE = "low-battery-filter"
    Parameters = LowBatteryParameters
    parameters: LowBatteryParameters

    def __init__(self, name: str, parameters: LowBatteryParameters | None = None) -> None:
        super().__init__(name, parameters)
        self._charge = LabelColumn(_charge)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        kept: Rows = rows[self._charge.of(cycle.layout).take(rows) >= self.parameters.least]
        return kept if len(kept) else rows


def _charge(endpoint: Endpoint) -> float:
    try:
        return float(endpoint.labels.get("charge", "100"))
    except ValueError:
        return 100.0
