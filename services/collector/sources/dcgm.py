"""`dcgm-data-source`: the pages of NVIDIA's DCGM exporter, which tells of GPUs what their servers don't.

The exporter runs beside the model server, in its pod, or once on every node; then its page is at the node's address and
has the GPUs of all the node's pods.
"""

from services.collector.sources.http import Port
from services.collector.sources.metrics import MetricsParameters, MetricsSource
from shared.model import Endpoint
from shared.plugin import Stability
from shared.quantities import Duration

PORT = 9400
"""The exporter's own default."""
INTERVAL = 1.0
"""Seconds. The exporter looks at the GPUs every 30 s unless told otherwise; the page is asked for more often than
that, so that what was read doesn't count as stale (by default after 2 s)."""


class DcgmParameters(MetricsParameters, frozen=True, kw_only=True):
    """Parameters, as of every source of metrics pages; and at which address."""

    port: Port | None = PORT
    interval: Duration | None = INTERVAL
    use_node_address: bool = False


class DcgmSource(MetricsSource):
    """The polling source of DCGM exporters: metrics pages at another address."""

    TYPE = "dcgm-data-source"
    STABILITY = Stability.ALPHA
    OF_SERVER = False
    Parameters = DcgmParameters
    parameters: DcgmParameters

    def address(self, endpoint: Endpoint) -> tuple[str, int]:
        port = self.parameters.port or PORT
        if not self.parameters.use_node_address:
            return endpoint.address, port
        if not endpoint.node_address:
            raise ValueError("the address of its node isn't known, and useNodeAddress asks for that one")
        return endpoint.node_address, port
