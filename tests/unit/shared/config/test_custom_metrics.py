"""The published example of custom metric scheduling loads as it was written, and comes to what is written now."""

from typing import Any

import pytest
import yaml

from shared.attributes import AttributeKey
from shared.config import Invalid, LoadedConfig, load
from shared.config.loader import load_document
from shared.plugin import Registry

REGISTRY = Registry.installed()
FORMER = """\
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
featureGates:
- dataLayer
plugins:
- name: pages
  type: metrics-data-source
  parameters: {path: /metrics, scheme: http}
- name: running
  type: prometheus-metric
  parameters:
    metricName: vllm:num_requests_running
    labels: {model_name: llama-3-8b}
- name: load
  type: metric-scorer
  parameters:
    metricName: vllm:num_requests_running
    optimizationMode: Minimize
    normalizationAlgo: Softmax
    min: 0
    max: 50
- type: max-score-picker
- type: single-profile-handler
- type: prefix-cache-scorer
  parameters: {blockSizeTokens: 64}
data:
  sources:
  - pluginRef: pages
    extractors: [{pluginRef: running}]
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: load, weight: 40}
  - {pluginRef: prefix-cache-scorer, weight: 60}
  - {pluginRef: max-score-picker}
"""


def former() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(FORMER)
    return document


def now() -> dict[str, Any]:
    """The same in today's words."""
    document = former()
    document["apiVersion"] = "llm-d.ai/v1alpha1"
    del document["featureGates"]
    document["dataLayer"] = document.pop("data")
    del document["plugins"][-1]["parameters"]
    document["plugins"].append({"type": "approx-prefix-cache-producer", "parameters": {"blockSizeTokens": 64}})
    return document


def meaning(config: LoadedConfig) -> Any:
    """What runs: every instance with its parameters, without where the document says so."""
    plugins = {name: (spec.kind.TYPE, spec.parameters) for name, spec in config.plugins.items()}
    del plugins["prefix-cache-scorer"]  # its parameters of old went to the producer
    profiles = [[(one.plugin.name, one.weight) for one in profile.members] for profile in config.profiles]
    return plugins, profiles, config.sources, config.producers, config.inputs


def problems(document: dict[str, Any]) -> list[str]:
    with pytest.raises(Invalid) as caught:
        load_document(document, REGISTRY)
    return [str(one) for one in caught.value.problems]


def test_the_document_of_old_means_what_todays_does() -> None:
    assert meaning(load(FORMER, REGISTRY)) == meaning(load_document(now(), REGISTRY))


def test_each_former_word_has_its_warning_and_nothing_else_has_one() -> None:
    assert [one.path for one in load(FORMER, REGISTRY).warnings] == [
        "apiVersion",
        "featureGates[0]",
        "plugins[5].parameters",
        "data",
    ]
    assert not load_document(now(), REGISTRY).warnings


def test_the_cache_parameters_of_the_scorer_are_applied_to_the_index() -> None:
    assert load(FORMER, REGISTRY).plugins["approx-prefix-cache-producer"].parameters.block_size_tokens == 64


def test_the_page_is_scraped_once_whatever_is_read_from_it() -> None:
    (source,) = load(FORMER, REGISTRY).sources
    assert (source.source, source.extractors) == ("pages", ("running", "core-metrics-extractor"))


def test_the_scorer_reads_what_the_extractor_makes() -> None:
    key = AttributeKey("vllm:num_requests_running", "running", float)
    assert load(FORMER, REGISTRY).inputs == {"load": {"metricName": key}}


def test_the_scorer_can_name_the_extractor_instead_of_the_metric() -> None:
    document = former()
    document["plugins"][2]["parameters"]["metricName"] = "running"
    assert load_document(document, REGISTRY).inputs == load(FORMER, REGISTRY).inputs


def test_two_extractors_of_one_metric_are_told_apart_by_their_names() -> None:
    document = former()
    labels = {"model_name": "mistral"}
    other = {"name": "others", "type": "prometheus-metric"}
    document["plugins"].append(other | {"parameters": {"metricName": "vllm:num_requests_running", "labels": labels}})
    document["data"]["sources"][0]["extractors"].append({"pluginRef": "others"})
    assert problems(document) == [
        "plugins[2].parameters.metricName: 'vllm:num_requests_running' is made by 'running' and 'others'; "
        "write the name of one of these plugins"
    ]
    document["plugins"][2]["parameters"]["metricName"] = "others"
    key = AttributeKey("vllm:num_requests_running", "others", float)
    assert load_document(document, REGISTRY).inputs == {"load": {"metricName": key}}


def test_a_metric_that_nothing_extracts_is_an_error_that_says_what_to_add() -> None:
    document = former()
    document["plugins"][2]["parameters"]["metricName"] = "gpu_temperature"
    (said,) = problems(document)
    assert said.startswith("plugins[2].parameters.metricName: nothing makes 'gpu_temperature'")
    assert "add a prometheus-metric extractor" in said


def test_an_extractor_that_no_source_names_reads_the_metrics_page() -> None:
    document = former()
    del document["data"]["sources"][0]["extractors"]
    assert load_document(document, REGISTRY).sources == load(FORMER, REGISTRY).sources
