"""`dcgm-data-source`: the metrics pages of NVIDIA's DCGM exporter.

The exporter runs in the model server's pod, or once per node. Then its page is at the node's address and has the GPUs
of all pods on the node.
"""

from services.collector.sources.http import Port
from services.collector.sources.metrics import MetricsParameters, MetricsSource
from shared.model import Endpoint
from shared.plugin import Stability
from shared.quantities import Duration

PORT = 9400
"""The exporter's default."""
INTERVAL = 1.0
"""Seconds. By default the exporter reads the GPUs every 30 s, but values become stale after 2 s."""


class DcgmParameters(MetricsParameters, frozen=True, kw_only=True):
    """Parameters: those of a metrics source, and the address."""

    port: Port | None = PORT
    interval: Duration | None = INTERVAL
    use_node_address: bool = False


class DcgmSource(MetricsSource):
    """Scrapes DCGM exporters."""

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
            raise ValueError("useNodeAddress is set, but the endpoint's node address is unknown")
        return endpoint.node_address, port
