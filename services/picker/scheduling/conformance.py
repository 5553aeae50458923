"""Plugins of the conformance suite of the Gateway API Inference Extension.

`header-based-testing-filter` keeps the endpoints that a request header names. `destination-endpoint-served-verifier`
tells clients which endpoint the proxy says served.
"""

from collections.abc import Mapping

import numpy as np

from services.picker.request import Headers
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter, ResponseHeaderProcessor
from services.picker.scheduling.record import Exchange
from services.picker.state.layout import Rows

SELECTION_HEADER = "test-epp-endpoint-selection"
MAX_ENTRIES = 256
"""Entries of it that are read."""
SERVED_HEADER = "x-conformance-test-served-endpoint"
MISSING = "fail: missing destination endpoint served metadata"


class HeaderBasedTestingFilter(Filter):
    """One endpoint for each address of the header, in its order; none without the header."""

    TYPE = "header-based-testing-filter"

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        chosen: dict[str, int] = {}
        for entry in cycle.request.headers.get(SELECTION_HEADER).split(",")[:MAX_ENTRIES]:
            named = cycle.layout.subset((entry.strip(),))
            among = named[np.isin(named, rows)]
            if len(among):
                row = among.item(0)
                chosen.setdefault(cycle.layout.endpoints[row].address, row)
        return np.array(list(chosen.values()), np.intp)


class DestinationEndpointServedVerifier(ResponseHeaderProcessor):
    """A response header with the `address:port` that the proxy reported."""

    TYPE = "destination-endpoint-served-verifier"

    def response_headers(self, exchange: Exchange, headers: Headers) -> Mapping[str, str]:
        return {SERVED_HEADER: exchange.authority or MISSING}
