"""`metrics-data-source`: the model servers' metrics pages in the Prometheus text format."""

from collections.abc import Sequence

from services.collector.interfaces import PROMETHEUS_TEXT, Binding
from services.collector.page.reader import MetricsReader
from services.collector.sources.http import HttpParameters, HttpSource
from shared.model import Endpoint, split_host_port
from shared.plugin import Concern, Demand
from shared.quantities import format_duration


class MetricsParameters(HttpParameters, frozen=True, kw_only=True):
    """Parameters: those of every HTTP source."""

    path: str = "/metrics"


class MetricsSource(HttpSource):
    """Scrapes metrics pages."""

    TYPE = "metrics-data-source"
    OUTPUT = PROMETHEUS_TEXT
    Parameters = MetricsParameters

    @classmethod
    def check(cls, parameters: HttpParameters, demand: Demand) -> list[Concern]:
        concerns = super().check(parameters, demand)
        if parameters.interval and parameters.interval >= demand.stale_after:
            every, after = format_duration(parameters.interval), format_duration(demand.stale_after)
            limit = f"{every} isn't below {after}, dataLayer.staleMetrics.after"
            concerns.append(Concern("interval", f"{limit}: values become stale before the next scrape", fatal=False))
        return concerns

    def address(self, endpoint: Endpoint) -> tuple[str, int]:
        if not endpoint.metrics_host:
            return super().address(endpoint)
        host, port = split_host_port(endpoint.metrics_host)
        return host, self.parameters.port or port or endpoint.port

    def reader(self, bindings: Sequence[Binding]) -> MetricsReader:
        return MetricsReader(bindings)
