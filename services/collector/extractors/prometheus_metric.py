"""`prometheus-metric`: one metric of the user's choice, as one attribute.

The attribute has the metric's name and this instance as its producer, so two instances that read one metric by
different labels are told apart. What the number is made of is said by `services.collector.page.measure`.
"""

import re
from collections.abc import Sequence
from typing import Any

from msgspec import field

from services.collector.interfaces import PROMETHEUS_TEXT, Extractor, Finding, MetricsBinding
from services.collector.page.measure import Measure, MeasureParameters
from services.collector.page.meter import Meter
from services.collector.page.selection import Choice
from services.collector.page.spec import MetricSpec
from shared.attributes import AttributeKey, AttributeMap
from shared.model import Endpoint
from shared.plugin import Concern, Demand

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class PrometheusMetricParameters(MeasureParameters, frozen=True, kw_only=True):
    """Parameters. Raises ValueError on creation when they don't fit together."""

    metric_name: str
    labels: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wrong: list[str] = []
        if "{" in self.metric_name:
            wrong.append(f"metricName: {self.metric_name!r} has braces; give labels in the parameter labels")
        elif not _NAME.fullmatch(self.metric_name):
            wrong.append(f"metricName: {self.metric_name!r} is no name of a metric, such as vllm:num_requests_running")
        wrong += [f"labels: {label!r} is no name of a label" for label in self.labels if not _LABEL.fullmatch(label)]
        try:
            super().__post_init__()
            self.of_page()
        except ValueError as error:
            wrong.append(str(error))
        if wrong:
            raise ValueError("; ".join(wrong))

    def of_page(self) -> Measure:
        """What is read off a page."""
        return self.measure(MetricSpec(self.metric_name, tuple(self.labels.items())), "metricName")


class PrometheusMetricExtractor(Extractor):
    """The extractor of one metric."""

    TYPE = "prometheus-metric"
    INPUT = PROMETHEUS_TEXT
    DEFAULT_SOURCE = "metrics-data-source"
    Parameters = PrometheusMetricParameters

    parameters: PrometheusMetricParameters

    def __init__(self, name: str, parameters: Any = None) -> None:
        super().__init__(name, parameters)
        self._measure = self.parameters.of_page()
        (self._key,) = self.produces(name, self.parameters)

    @classmethod
    def produces(cls, name: str, parameters: PrometheusMetricParameters) -> tuple[AttributeKey[float], ...]:
        return (AttributeKey(parameters.metric_name, name, float),)

    @classmethod
    def check(cls, parameters: PrometheusMetricParameters, demand: Demand) -> list[Concern]:
        concern = parameters.of_page().concern
        return [Concern("", concern, fatal=False)] if concern and demand.required else []

    def reads(self, endpoint: Endpoint) -> None:
        return None

    def bind(self, endpoint: Endpoint) -> "PrometheusMetricBinding":
        return PrometheusMetricBinding(self._key, self._measure)


class PrometheusMetricBinding(MetricsBinding):
    """Reads the metric off one endpoint's pages."""

    def __init__(self, key: AttributeKey[float], measure: Measure) -> None:
        self._key = key
        self._meter = Meter(measure)

    @property
    def choices(self) -> Sequence[Choice]:
        return self._meter.choices

    def store(self, attributes: AttributeMap, at: float) -> bool:
        self._meter.read(at)
        return self._meter.store(self._key, attributes, at)

    def findings(self) -> list[Finding]:
        return [Finding(str(self._meter), self._key.name, self._meter.outcome)]

    def __repr__(self) -> str:
        return f"<PrometheusMetricBinding {self._key} {self._meter!r}>"
