"""The plugin types that the collector brings along."""

from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.extractors.dcgm import DcgmExtractor
from services.collector.extractors.models import ModelsExtractor
from services.collector.extractors.prometheus_metric import PrometheusMetricExtractor
from services.collector.sources.dcgm import DcgmSource
from services.collector.sources.metrics import MetricsSource
from services.collector.sources.models import ModelsSource
from shared.datalayer.endpoints import EndpointNotificationSource
from shared.plugin import Plugin

PLUGINS: tuple[type[Plugin], ...] = (
    MetricsSource,
    ModelsSource,
    DcgmSource,
    CoreMetricsExtractor,
    ModelsExtractor,
    PrometheusMetricExtractor,
    DcgmExtractor,
    EndpointNotificationSource,
)
