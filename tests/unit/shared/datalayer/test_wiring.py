"""Which document may hang what under which source: checked when it is loaded, whoever runs it."""

import pytest

from shared.config import Invalid, load
from shared.config.loaded import LoadedConfig
from shared.plugin import Registry, Tier

REGISTRY = Registry.installed()
NODES = "{version: v1, kind: Node}"
NODE_SOURCE = f"{{type: k8s-notification-source, parameters: {NODES}}}"
LABELS = "{attributes: [{label: gpu, attributeKey: GPU}]}"


def loaded(plugins: str, sources: str = "") -> LoadedConfig:
    listed = "".join(f"- {one.strip()}\n" for one in plugins.strip().splitlines())
    layer = f"dataLayer:\n  sources:\n{sources}" if sources else ""
    return load(f"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n{listed}{layer}", REGISTRY)


def feed(source: str, *extractors: str) -> str:
    listed = "".join(f"    - pluginRef: {one}\n" for one in extractors)
    return f"  - pluginRef: {source}\n    extractors:\n{listed}"


def errors(plugins: str, sources: str = "") -> list[str]:
    with pytest.raises(Invalid) as caught:
        loaded(plugins, sources)
    return [str(one) for one in caught.value.problems]


def test_the_originals_example_with_a_source_of_no_name_loads() -> None:
    config = loaded(
        f"{NODE_SOURCE}\n{{type: node-labels-extractor, parameters: {LABELS}}}",
        feed("k8s-notification-source", "node-labels-extractor"),
    )
    assert config.sources[0].extractors == ("node-labels-extractor",)


def test_an_extractor_under_a_source_of_another_sort_is_an_error() -> None:
    assert errors(
        "{type: endpoint-notification-source}\n{type: core-metrics-extractor}",
        feed("endpoint-notification-source", "core-metrics-extractor"),
    ) == [
        "dataLayer.sources[0].extractors[0].pluginRef: 'core-metrics-extractor' reads Prometheus text; "
        "the source 'endpoint-notification-source' gives endpoint events"
    ]
    assert errors(
        "{type: metrics-data-source}\n{type: topology-extractor}", feed("metrics-data-source", "topology-extractor")
    )
    assert errors(f"{NODE_SOURCE}\n{{type: topology-extractor}}", feed("k8s-notification-source", "topology-extractor"))


def test_an_extractor_under_a_source_of_another_kind_of_object_is_an_error() -> None:
    assert errors(
        "{type: k8s-notification-source, name: pods, parameters: {version: v1, kind: Pod}}\n"
        f"{{type: node-labels-extractor, parameters: {LABELS}}}",
        feed("pods", "node-labels-extractor"),
    ) == [
        "dataLayer.sources[0].extractors[0].pluginRef: 'node-labels-extractor' reads v1 Node; "
        "the source 'pods' gives v1 Pod"
    ]


def test_sources_of_different_kinds_stand_beside_each_other() -> None:
    loaded(
        f"{{type: k8s-notification-source, name: a, parameters: {NODES}}}\n"
        "{type: k8s-notification-source, name: b, parameters: {version: v1beta1, kind: Node}}\n"
        "{type: k8s-notification-source, name: c, parameters: {group: apps, version: v1, kind: Node}}\n"
        "{type: metrics-data-source, name: d}\n{type: metrics-data-source, name: e}"
    )


def test_version_and_kind_are_required() -> None:
    assert errors("{type: k8s-notification-source}") == [
        "plugins[0].parameters.version: required, and missing",
        "plugins[0].parameters.kind: required, and missing",
    ]
    [error] = errors('{type: k8s-notification-source, parameters: {version: v1, kind: ""}}')
    assert error.startswith("plugins[0].parameters.kind")


def test_an_extractor_that_is_only_listed_gets_a_source_of_the_kind_that_it_reads() -> None:
    config = loaded(f"{{type: node-labels-extractor, parameters: {LABELS}}}")
    [source] = [one for one in config.sources if one.extractors == ("node-labels-extractor",)]
    assert config.plugins[source.source].topic == "v1 Node"


def test_an_extractor_that_is_only_listed_joins_the_source_of_the_kind_that_it_reads() -> None:
    config = loaded(
        "{type: k8s-notification-source, name: pods, parameters: {version: v1, kind: Pod}}\n"
        f"{{type: k8s-notification-source, name: nodes, parameters: {NODES}}}\n"
        f"{{type: node-labels-extractor, parameters: {LABELS}}}"
    )
    assert [one.source for one in config.sources if "node-labels-extractor" in one.extractors] == ["nodes"]


def test_each_tier_makes_what_runs_in_it() -> None:
    config = loaded(f"{{type: topology-extractor}}\n{{type: node-labels-extractor, parameters: {LABELS}}}")
    of = {tier: set(config.instances(tier)) for tier in Tier}
    assert {"endpoint-notification-source", "topology-extractor"} <= of[Tier.PICKER]
    assert "endpoint-notification-source" in of[Tier.COLLECTOR]
    assert of[Tier.WATCHER] == {"k8s-notification-source", "node-labels-extractor"}
    assert not of[Tier.WATCHER] & (of[Tier.PICKER] | of[Tier.COLLECTOR])
    assert "topology-extractor" not in of[Tier.COLLECTOR]
