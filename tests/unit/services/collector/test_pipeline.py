"""What a configuration asks of the collector."""

import pytest

from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.interfaces import Extractor
from services.collector.pipeline import build
from services.collector.plugins import PLUGINS
from shared.attributes import STANDARD_KEYS
from shared.config import Invalid, load
from shared.plugin import Plugin, Registry, Role

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


class OtherExtractor(Extractor):
    """Reads what a metrics source doesn't give."""

    TYPE = "other-extractor"
    INPUT = "model list"


class EventExtractor(Plugin):
    """An extractor of something that isn't polled."""

    TYPE = "event-extractor"
    ROLES = frozenset({Role.EXTRACTOR})


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


REGISTRY = Registry([*PLUGINS, OtherExtractor, EventExtractor, AnyPlugin, Handler, Detector])


def test_a_pipeline_has_the_sources_of_the_configuration_and_no_second_one() -> None:
    text = HEAD + (
        "plugins:\n- {name: mine, type: metrics-data-source, parameters: {port: 8002}}\n"
        "- {type: core-metrics-extractor}\n"
        "dataLayer: {sources: [{pluginRef: mine, extractors: [{pluginRef: core-metrics-extractor}]}]}\n"
    )
    pipeline = build(load(text, REGISTRY))
    assert pipeline.describe() == [{"source": "mine", "extractors": ["core-metrics-extractor"]}]


def test_a_source_that_feeds_nobody_is_not_asked() -> None:
    sources = "dataLayer: {injectDefaults: false, sources: [{pluginRef: metrics-data-source}]}\n"
    assert build(load(f"{HEAD}plugins: [{{type: metrics-data-source}}]\n{sources}", REGISTRY)).sources == ()


@pytest.mark.parametrize(
    ("extractor", "problem"),
    [
        (
            "other-extractor",
            "'other-extractor' reads model list; the source 'metrics-data-source' gives Prometheus text",
        ),
        ("event-extractor", "is a event-extractor, which can't read what 'metrics-data-source' polls"),
    ],
)
def test_an_extractor_that_does_not_fit_its_source_is_refused_with_its_place(extractor: str, problem: str) -> None:
    text = HEAD + (
        f"plugins: [{{type: metrics-data-source}}, {{type: {extractor}}}]\n"
        f"dataLayer: {{sources: [{{pluginRef: metrics-data-source, extractors: [{{pluginRef: {extractor}}}]}}]}}\n"
    )
    with pytest.raises(Invalid) as caught:
        build(load(text, REGISTRY, "config.yaml"))
    (line,) = caught.value.lines()
    assert line.startswith("config.yaml: dataLayer.sources[0].extractors[0].pluginRef: ")
    assert problem in line


def test_a_certificate_that_can_not_be_read_is_an_error_of_the_configuration() -> None:
    text = HEAD + (
        "plugins: [{type: metrics-data-source, parameters: "
        "{scheme: https, insecureSkipVerify: false, caCertPath: /nowhere}}]\n"
    )
    with pytest.raises(Invalid, match=r"plugins\[0\].*caCertPath: '/nowhere' can't be used"):
        build(load(text, REGISTRY))


def test_configurations_that_differ_only_elsewhere_have_the_same_plan() -> None:
    event = load(HEAD, REGISTRY)
    other = load(HEAD + "plugins: [{type: max-score-picker}]\n", REGISTRY)
    third = load(HEAD + "plugins: [{type: metrics-data-source, parameters: {interval: 1s}}]\n", REGISTRY)
    assert build(event).plan == build(other).plan
    assert build(event).plan != build(third).plan


def test_what_a_pipeline_produces_is_found_out_when_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of engines it takes long, and the event loop needs it."""
    pipeline = build(load("", Registry.installed()))
    monkeypatch.setattr(CoreMetricsExtractor, "produces", lambda *_: pytest.fail("asked again"))
    assert set(STANDARD_KEYS) <= pipeline.keys
