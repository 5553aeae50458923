"""One metric of the user's choice, as an attribute."""

import asyncio
from typing import Any

import pytest

from services.collector.extractors.prometheus_metric import PrometheusMetricExtractor, PrometheusMetricParameters
from services.collector.page.selection import Outcome
from services.collector.sources.metrics import MetricsSource
from shared.attributes import AttributeKey, AttributeMap
from shared.config import load
from shared.config.decode import MISSING, decode
from shared.config.problems import Problems
from shared.model import Endpoint
from shared.plugin import Registry

ENDPOINT = Endpoint(id="default/a", name="a", address="10.0.0.1", port=8000)


def parameters(given: dict[str, Any]) -> PrometheusMetricParameters:
    problems = Problems()
    decoded = decode(given, PrometheusMetricParameters, "parameters", problems, ignore_case=True)
    assert isinstance(decoded, PrometheusMetricParameters), problems.errors
    return decoded


def extract(page: str, **given: Any) -> tuple[float | None, Outcome]:
    """What the attribute is after a page, and what the page said."""
    extractor = PrometheusMetricExtractor("mine", parameters(given))
    binding, attributes = extractor.bind(ENDPOINT), AttributeMap()
    asyncio.run(MetricsSource("m").reader([binding]).read(page.encode(), 0.0))
    binding.store(attributes, 1.0)
    (finding,) = binding.findings()
    return attributes.get(AttributeKey(given["metricName"], "mine", float)), finding.outcome


def test_only_series_with_all_the_labels_count() -> None:
    page = 'm{gpu="0",job="a"} 1\nm{gpu="1",job="a"} 2\nm{gpu="1"} 3\n'
    assert extract(page, metricName="m", labels={"gpu": "1"}) == (2.0, Outcome.FOUND)
    assert extract(page, metricName="m", labels={"gpu": "2"}) == (None, Outcome.NO_SERIES)


@pytest.mark.parametrize(("value", "outcome"), [("-3", Outcome.FOUND), ("NaN", Outcome.INVALID)])
def test_a_value_may_be_negative_but_has_to_be_a_number(value: str, outcome: Outcome) -> None:
    assert extract(f"m {value}\n", metricName="m")[1] is outcome


def test_a_store_says_whether_the_value_is_another_one_and_a_missing_metric_leaves_the_last() -> None:
    binding = PrometheusMetricExtractor("mine", PrometheusMetricParameters(metric_name="m")).bind(ENDPOINT)
    reader, attributes = MetricsSource("m").reader([binding]), AttributeMap()
    news = []
    for at, page in enumerate((b"m 1\n", b"m 1\n", b"m 2\n", b"n 1\n")):
        asyncio.run(reader.read(page, at))
        news.append(binding.store(attributes, at))
    assert news == [True, False, True, False]
    sample = attributes.sample(AttributeKey("m", "mine", float))
    assert sample is not None
    assert (sample.value, sample.at) == (2.0, 2)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "parameters.metricName: required, and missing"),
        ({"metricName": "m{a=b}"}, "metricName: 'm{a=b}' has braces; use the parameter labels"),
        ({"metricName": "a b"}, "metricName: 'a b' is not a metric name"),
        ({"metricName": ""}, "metricName: '' is not a metric name"),
        ({"metricName": "m", "labels": {"a-b": "1"}}, "labels: 'a-b' is not a label name"),
        ({"metricName": "m_bucket", "function": "mean"}, "metricName: 'm_bucket' is a series of a histogram"),
    ],
)
def test_parameters_that_can_not_be_used_are_refused_by_name(given: dict[str, Any], problem: str) -> None:
    problems = Problems()
    assert decode(given, PrometheusMetricParameters, "parameters", problems, ignore_case=True) is MISSING
    assert any(problem in str(error) for error in problems.errors), problems.errors


LATENCY = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- name: first-token
  type: prometheus-metric
  parameters: {metricName: ttft, function: mean, window: 30s}
- type: core-metrics-extractor
  parameters:
    engineConfigs:
    - name: vllm
      extends: vllm
      customMetrics: [{attributeKey: Slow, metricSpec: ttft, function: quantile, quantile: 0.9}]
- {name: prompt, type: metric-scorer, parameters: {metricName: first-token, max: 2}}
- name: slow
  type: endpoint-attribute-scorer
  parameters: {attributeKey: Slow, algorithm: {type: linear_lower_is_better}}
"""


def test_a_latency_without_an_empty_value_is_warned_of_where_it_is_scored() -> None:
    warnings = load(LATENCY, Registry.installed()).warnings
    assert [warning.path for warning in warnings] == [
        "plugins[0].parameters",
        "plugins[1].parameters.engineConfigs[0].customMetrics[0]",
    ]
    assert warnings[0].message.startswith("an endpoint that observes nothing for 30s has no fresh mean")
    mended = LATENCY.replace("30s}", "30s, emptyValue: 0.1}").replace("0.9}", "0.9, emptyValue: 0.1}")
    assert not load(mended, Registry.installed()).warnings
    unread = LATENCY[: LATENCY.index("- {name: prompt")]
    assert not load(unread, Registry.installed()).warnings
