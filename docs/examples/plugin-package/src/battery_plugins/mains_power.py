"""`mains-power-scorer`: prefers servers that don't run on battery."""

from typing import Annotated

from msgspec import Meta, Struct

from battery_plugins.labels import LabelColumn
from pointsman.api import Cycle, Endpoint, Floats, Rows, Scorer


class MainsPowerParameters(Struct, frozen=True, rename="camel"):
    """The label that says what a server runs on, and the score of one that runs on battery."""

    label: Annotated[str, Meta(min_length=1)] = "power"
    battery_score: Annotated[float, Meta(ge=0, le=1)] = 0.0


class MainsPowerScorer(Scorer):
    """1, and `batteryScore` on battery."""

    TYPE = "mains-power-scorer"
    BOUNDED = True
    Parameters = MainsPowerParameters
    parameters: MainsPowerParameters

    def __init__(self, name: str, parameters: MainsPowerParameters | None = None) -> None:
        super().__init__(name, parameters)
        self._scores = LabelColumn(self._score_of)

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        return self._scores.of(cycle.layout).take(rows)

    def _score_of(self, endpoint: Endpoint) -> float:
        on_battery = endpoint.labels.get(self.parameters.label) == "battery"
        return self.parameters.battery_score if on_battery else 1.0
