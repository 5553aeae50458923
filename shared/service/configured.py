"""Which configurations a process uses: in its metrics, on `/readyz` and on `/debug/state`, the same in every tier."""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Configured(Struct, frozen=True):
    """A configuration that is in use."""

    pool: str
    """`namespace/name`."""
    origin: str
    """Where its document was read."""
    revision: str
    """Identifies its document (`shared.config.defaults.revision`)."""


class ConfiguredMetrics(Collector):
    """A gauge that is 1 for each configuration in use: processes of one pool should agree."""

    def __init__(self, configurations: Callable[[], Sequence[Configured]]) -> None:
        self._configurations = configurations

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "pointsman_config_info",
            "1 for the configuration in use, with its origin and the revision of its document",
            labels=["pool", "origin", "revision"],
        )
        for configured in self._configurations():
            family.add_metric([configured.pool, configured.origin, configured.revision], 1)
        yield family
