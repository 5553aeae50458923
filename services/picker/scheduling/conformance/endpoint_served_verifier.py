"""`destination-endpoint-served-verifier`: tells clients which endpoint the proxy says served, for conformance tests."""

from collections.abc import Mapping

from services.picker.request import Headers
from services.picker.scheduling.interfaces import ResponseHeaderProcessor
from services.picker.scheduling.record import Exchange

HEADER = "x-conformance-test-served-endpoint"
MISSING = "fail: missing destination endpoint served metadata"


class DestinationEndpointServedVerifier(ResponseHeaderProcessor):
    """A response header with the `address:port` that the proxy reported."""

    TYPE = "destination-endpoint-served-verifier"

    def response_headers(self, exchange: Exchange, headers: Headers) -> Mapping[str, str]:
        layout = exchange.layout
        row = layout.index.get(exchange.endpoint)
        return {HEADER: (exchange.endpoint if row is None else layout.authorities[row]) or MISSING}
