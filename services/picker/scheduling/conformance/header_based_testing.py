"""`header-based-testing-filter`: keeps the endpoints that a request header names: for conformance tests of gateways."""

import numpy as np

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.state.layout import Rows

HEADER = "test-epp-endpoint-selection"
MAX_ENTRIES = 256
"""Entries that are read."""


class HeaderBasedTestingFilter(Filter):
    """One endpoint for each address of the header, in its order; none without the header."""

    TYPE = "header-based-testing-filter"

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        chosen: dict[str, int] = {}
        for entry in cycle.request.headers.get(HEADER).split(",")[:MAX_ENTRIES]:
            named = cycle.layout.subset((entry.strip(),))
            among = named[np.isin(named, rows)]
            if len(among):
                row = among.item(0)
                chosen.setdefault(cycle.layout.endpoints[row].address, row)
        return np.array(list(chosen.values()), np.intp)
