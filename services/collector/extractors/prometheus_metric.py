"""`prometheus-metric`: one query of the user's as one attribute.

The attribute has the metric's name, and the plugin instance as its producer. So two instances can read one metric with
different labels. `services.collector.page.query` defines the queries.
"""

import re
from collections.abc import Sequence
from typing import Any

from msgspec import field

from services.collector.interfaces import PROMETHEUS_TEXT, Extractor, Finding, MetricsBinding
from services.collector.page.evaluator import QueryEvaluator
from services.collector.page.query import MetricQuery, QueryParameters
from services.collector.page.selection import MetricFallback, Outcome
from services.collector.page.spec import MetricSpec
from shared.attributes import AttributeKey, AttributeMap
from shared.model import Endpoint
from shared.plugin import Concern, Demand

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class PrometheusMetricParameters(QueryParameters, frozen=True, kw_only=True):
    """Parameters. Raises ValueError on creation when they contradict each other."""

    metric_name: str
    labels: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wrong: list[str] = []
        if "{" in self.metric_name:
            wrong.append(f"metricName: {self.metric_name!r} has braces; use the parameter labels")
        elif not _NAME.fullmatch(self.metric_name):
            wrong.append(f"metricName: {self.metric_name!r} is not a metric name such as vllm:num_requests_running")
        wrong += [f"labels: {label!r} is not a label name" for label in self.labels if not _LABEL.fullmatch(label)]
        try:
            super().__post_init__()
            self.metric_query()
        except ValueError as error:
            wrong.append(str(error))
        if wrong:
            raise ValueError("; ".join(wrong))

    def metric_query(self) -> MetricQuery:
        """The query of the metric."""
        return self.query(MetricSpec(self.metric_name, tuple(self.labels.items())), "metricName")


class PrometheusMetricExtractor(Extractor):
    """The extractor of one metric."""

    TYPE = "prometheus-metric"
    INPUT = PROMETHEUS_TEXT
    DEFAULT_SOURCE = "metrics-data-source"
    Parameters = PrometheusMetricParameters

    parameters: PrometheusMetricParameters

    def __init__(self, name: str, parameters: Any = None) -> None:
        super().__init__(name, parameters)
        self._query = self.parameters.metric_query()
        (self._key,) = self.produces(name, self.parameters)

    @classmethod
    def produces(cls, name: str, parameters: PrometheusMetricParameters) -> tuple[AttributeKey[float], ...]:
        return (AttributeKey(parameters.metric_name, name, float),)

    @classmethod
    def check(cls, parameters: PrometheusMetricParameters, demand: Demand) -> list[Concern]:
        concern = parameters.metric_query().concern
        return [Concern("", concern, fatal=False)] if concern and demand.required else []

    def reads(self, endpoint: Endpoint) -> None:
        return None

    def bind(self, endpoint: Endpoint) -> "QueryBinding":
        return QueryBinding(self._key, self._query)


class QueryBinding(MetricsBinding):
    """Evaluates a query over one endpoint's pages and stores the value as an attribute."""

    def __init__(self, key: AttributeKey[float], query: MetricQuery) -> None:
        self.key = key
        self._evaluator = QueryEvaluator(query)

    @property
    def fallbacks(self) -> Sequence[MetricFallback]:
        return self._evaluator.fallbacks

    @property
    def outcome(self) -> Outcome:
        """The result of the last page."""
        return self._evaluator.outcome

    def evaluate(self, at: float) -> None:
        """The first half of `store`."""
        self._evaluator.evaluate(at)

    def put(self, attributes: AttributeMap, at: float) -> bool:
        """The second half of `store`."""
        return self._evaluator.store(self.key, attributes, at)

    def store(self, attributes: AttributeMap, at: float) -> bool:
        self.evaluate(at)
        return self.put(attributes, at)

    def findings(self) -> list[Finding]:
        return [Finding(str(self._evaluator.query), self.key.name, self.outcome)]

    def __repr__(self) -> str:
        return f"<QueryBinding {self.key} {self._evaluator!r}>"
