"""`core-metrics-extractor`."""

from services.collector.extractors.core.extractor import CoreMetricsExtractor
from services.collector.extractors.core.parameters import CoreParameters

__all__ = ["CoreMetricsExtractor", "CoreParameters"]
