"""When certificates expire, as a metric: Prometheus knows the time, so it needs no more than that."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

EXPIRATIONS = "pointsman_certificate_expiration_timestamp_seconds"
"""Named as cert-manager names its own."""


class CertificateMetrics(Collector):
    """Each source has the expiry of certificates by name, in seconds since the epoch. Read when scraped."""

    def __init__(self, *sources: Callable[[], Mapping[str, float]]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        text = "When a certificate that the process uses expires, in seconds since the epoch; of a chain, the first one"
        family = GaugeMetricFamily(EXPIRATIONS, text, labels=("certificate",))
        for source in self._sources:
            for name, at in source().items():
                family.add_metric((name,), at)
        yield family
