"""The plugin types that the collector brings along."""

from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.sources.metrics import MetricsSource
from shared.plugin import Plugin

PLUGINS: tuple[type[Plugin], ...] = (MetricsSource, CoreMetricsExtractor)
