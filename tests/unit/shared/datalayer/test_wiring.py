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
    listed = "".join(f"- {line.strip()}\n" for line in plugins.strip().splitlines())
    layer = f"dataLayer:\n  sources:\n{sources}" if sources else ""
    return load(f"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n{listed}{layer}", REGISTRY)


def feed(source: str, *extractors: str) -> str:
    listed = "".join(f"    - pluginRef: {extractor}\n" for extractor in extractors)
    return f"  - pluginRef: {source}\n    extractors:\n{listed}"


def errors(plugins: str, sources: str = "") -> list[str]:
    with pytest.raises(Invalid) as caught:
        loaded(plugins, sources)
    return [str(problem) for problem in caught.value.problems]


READS_NODES = f"{{type: node-labels-extractor, parameters: {LABELS}}}"
PODS = "{type: k8s-notification-source, name: pods, parameters: {version: v1, kind: Pod}}"


@pytest.mark.parametrize(
    ("plugins", "sources", "problem"),
    [
        (
            "{type: metrics-data-source}\n{type: topology-extractor}",
            feed("metrics-data-source", "topology-extractor"),
            "'topology-extractor' reads endpoint events; the source 'metrics-data-source' gives Prometheus text",
        ),
        (
            f"{NODE_SOURCE}\n{{type: topology-extractor}}",
            feed("k8s-notification-source", "topology-extractor"),
            "'topology-extractor' reads endpoint events; the source 'k8s-notification-source' gives Kubernetes objects",
        ),
        (
            f"{PODS}\n{READS_NODES}",
            feed("pods", "node-labels-extractor"),
            "'node-labels-extractor' reads v1 Node; the source 'pods' gives v1 Pod",
        ),
    ],
)
def test_an_extractor_under_a_source_that_gives_something_else_is_an_error(
    plugins: str, sources: str, problem: str
) -> None:
    assert errors(plugins, sources) == [f"dataLayer.sources[0].extractors[0].pluginRef: {problem}"]


@pytest.mark.parametrize(
    ("sources", "name"),
    [
        ("", "k8s-notification-source"),
        (f"{PODS}\n{{type: k8s-notification-source, name: nodes, parameters: {NODES}}}\n", "nodes"),
    ],
)
def test_an_extractor_that_is_only_listed_gets_or_joins_a_source_of_the_kind_that_it_reads(
    sources: str, name: str
) -> None:
    config = loaded(sources + READS_NODES)
    [source] = [source.source for source in config.sources if "node-labels-extractor" in source.extractors]
    assert (source, config.plugins[source].topic) == (name, "v1 Node")


def test_each_tier_makes_what_runs_in_it() -> None:
    config = loaded(f"{{type: topology-extractor}}\n{{type: node-labels-extractor, parameters: {LABELS}}}")
    of = {tier: set(config.instances(tier)) for tier in Tier}
    assert {"endpoint-notification-source", "topology-extractor"} <= of[Tier.PICKER]
    assert "endpoint-notification-source" in of[Tier.COLLECTOR]
    assert of[Tier.WATCHER] == {"k8s-notification-source", "node-labels-extractor"}
    assert not of[Tier.WATCHER] & (of[Tier.PICKER] | of[Tier.COLLECTOR])
    assert "topology-extractor" not in of[Tier.COLLECTOR]
