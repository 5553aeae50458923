"""What a configuration asks of the collector."""

import pytest

from services.collector.interfaces import Extractor
from services.collector.pipeline import build, plan
from services.collector.plugins import PLUGINS
from shared.config import Invalid, load
from shared.plugin import Plugin, Registry, Role

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


class OtherExtractor(Extractor):
    """Reads what a metrics source doesn't give."""

    TYPE = "other-extractor"
    INPUT = "model list"


class AnyPlugin(Plugin):
    """Stands for the picker's plugins that every document gets."""

    TYPE = "max-score-picker"
    ROLES = frozenset({Role.PICKER, Role.SCORER})


class Handler(Plugin):
    TYPE = "single-profile-handler"
    ROLES = frozenset({Role.PROFILE_HANDLER})


class Detector(Plugin):
    TYPE = "utilization-detector"
    ROLES = frozenset({Role.SATURATION_DETECTOR})


REGISTRY = Registry([*PLUGINS, OtherExtractor, AnyPlugin, Handler, Detector])


def test_the_metrics_source_and_the_core_extractor_are_there_without_being_asked_for() -> None:
    pipeline = build(load(HEAD, REGISTRY))
    assert pipeline.describe() == [{"source": "metrics-data-source", "extractors": ["core-metrics-extractor"]}]


def test_a_metrics_source_under_another_name_is_not_joined_by_a_second_one() -> None:
    text = HEAD + (
        "plugins:\n- {name: mine, type: metrics-data-source, parameters: {port: 8002}}\n"
        "- {type: core-metrics-extractor}\n"
        "dataLayer: {sources: [{pluginRef: mine, extractors: [{pluginRef: core-metrics-extractor}]}]}\n"
    )
    assert [feed.source.name for feed in build(load(text, REGISTRY)).feeds] == ["mine"]


def test_a_source_that_feeds_nobody_is_not_asked() -> None:
    text = HEAD + "plugins: [{type: metrics-data-source}]\ndataLayer: {sources: [{pluginRef: metrics-data-source}]}\n"
    assert build(load(text, REGISTRY)).feeds == ()


def test_an_extractor_that_reads_another_format_is_refused_with_its_place() -> None:
    text = HEAD + (
        "plugins: [{type: metrics-data-source}, {type: other-extractor}]\n"
        "dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: other-extractor}]}]}\n"
    )
    with pytest.raises(Invalid) as caught:
        build(load(text, REGISTRY, "config.yaml"))
    assert caught.value.lines() == [
        "config.yaml: dataLayer.sources[0].extractors[0].pluginRef: 'other-extractor' is a other-extractor, "
        "which reads model list; the source 'metrics-data-source' gives Prometheus text"
    ]


def test_a_certificate_that_can_not_be_read_is_an_error_of_the_configuration() -> None:
    text = HEAD + (
        "plugins: [{type: metrics-data-source, parameters: "
        "{scheme: https, insecureSkipVerify: false, caCertPath: /nowhere}}]\n"
    )
    with pytest.raises(Invalid, match=r"plugins\[0\].*caCertPath: '/nowhere' can't be used"):
        build(load(text, REGISTRY))


def test_configurations_that_differ_only_elsewhere_have_the_same_plan() -> None:
    one = load(HEAD, REGISTRY)
    other = load(HEAD + "plugins: [{type: max-score-picker}]\n", REGISTRY)
    third = load(HEAD + "plugins: [{type: metrics-data-source, parameters: {interval: 1s}}]\n", REGISTRY)
    assert plan(one) == plan(other)
    assert plan(one) != plan(third)
