"""`header-label-affinity-scorer`: prefers the endpoints one of whose labels has the value of a request header."""

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from services.picker.scheduling.checks import HeaderName
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Scorer
from services.picker.state.layout import Floats, Layout, Rows


class HeaderLabelAffinityParameters(Struct, frozen=True, rename="camel"):
    """The header and the label."""

    header_name: HeaderName
    label_key: Annotated[str, Meta(min_length=1)]


class HeaderLabelAffinityScorer(Scorer):
    """1 where the label equals the header, else 0; 0 for all without the header."""

    TYPE = "header-label-affinity-scorer"
    BOUNDED = True
    Parameters = HeaderLabelAffinityParameters
    parameters: HeaderLabelAffinityParameters

    def __init__(self, name: str, parameters: HeaderLabelAffinityParameters) -> None:
        super().__init__(name, parameters)
        self._header = parameters.header_name.lower()
        self._layout = Layout()
        self._numbers: dict[str, int] = {}
        """Of the label's values."""
        self._values = np.zeros(0, np.intp)
        """The number of each endpoint's value; 0 without the label."""

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        if cycle.layout is not self._layout:
            self._read(cycle.layout)
        number = self._numbers.get(cycle.request.headers.get(self._header), 0)
        if not number:
            return np.zeros(len(rows))
        scores: Floats = (self._values[rows] == number).astype(np.float64)
        return scores

    def _read(self, layout: Layout) -> None:
        values = [endpoint.labels.get(self.parameters.label_key, "") for endpoint in layout.endpoints]
        known = sorted({*values} - {""})
        self._numbers = dict(zip(known, range(1, len(known) + 1), strict=True))
        self._values = np.array([self._numbers.get(value, 0) for value in values], np.intp)
        self._layout = layout
