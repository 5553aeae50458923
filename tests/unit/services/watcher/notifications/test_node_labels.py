from typing import Any

import pytest
from structlog.testing import capture_logs

from services.watcher.notifications.node_labels import NodeLabelsExtractor
from shared.attributes import AttributeKey
from shared.config import Invalid, load
from shared.datalayer.events import Change
from shared.datalayer.objects import NODE, KubernetesObject, NotificationEvent
from shared.model import Endpoint
from shared.plugin import Registry

MEMORY = {"label": "nvidia.com/gpu.memory", "attributeKey": "GPUMemory"}
PRODUCT = {"label": "nvidia.com/gpu.product", "attributeKey": "GPUClass", "values": {"H100": 3, "A100": 2}}


def document(*attributes: dict[str, Any], name: str = "node-labels-extractor") -> str:
    return (
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"
        f"- {{type: node-labels-extractor, name: {name}, parameters: {{attributes: {list(attributes)}}}}}\n"
    )


def extractor(*attributes: dict[str, Any], name: str = "node-labels-extractor") -> NodeLabelsExtractor:
    config = load(document(*attributes, name=name), Registry.installed())
    made = config.plugins[name].create()
    assert isinstance(made, NodeLabelsExtractor)
    return made


def node(name: str, labels: dict[str, str] | None = None) -> KubernetesObject:
    """A node as `kubectl get node -o yaml` prints one, shortened."""
    metadata = {"name": name, "uid": "5d1f", "resourceVersion": "41", **({} if labels is None else {"labels": labels})}
    status = {"allocatable": {"cpu": "8", "nvidia.com/gpu": "8"}}
    return KubernetesObject(NODE, name, {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status})


def on(
    node_labels_extractor: NodeLabelsExtractor,
    name: str,
    labels: dict[str, str] | None,
    change: Change = Change.UPDATED,
) -> bool:
    return node_labels_extractor.on_object(NotificationEvent(change, node(name, labels)))


def at(name: str) -> Endpoint:
    return Endpoint(id="e", name="e", address="10.0.0.1", port=8000, node=name)


def said(node_labels_extractor: NodeLabelsExtractor, name: str) -> dict[str, float]:
    return {key.name: value for key, value in node_labels_extractor.attributes(at(name)).items()}


@pytest.mark.parametrize(
    ("attribute", "text", "number"),
    [
        *(
            (MEMORY, text, number)
            for text, number in (("81559", 81559.0), ("-1.5", -1.5), ("+2", 2.0), ("1e3", 1000.0))
        ),
        (MEMORY, ".5", 0.5),
        *((PRODUCT, text, number) for text, number in (("H100", 3.0), ("A100", 2.0), ("7", None))),
    ],
)
def test_the_number_in_a_label_or_the_one_that_its_text_stands_for_is_an_attribute_of_endpoints_on_the_node(
    attribute: dict[str, Any], text: str, number: float | None
) -> None:
    made = extractor(attribute)
    assert on(made, "n1", {attribute["label"]: text}) is (number is not None)
    assert said(made, "n1") == ({} if number is None else {attribute["attributeKey"]: number})
    assert said(made, "n2") == said(made, "") == {}


@pytest.mark.parametrize("text", ["", "many", "nan", "inf", "1_000", "80Gi", "1e999", "٣"])
def test_a_text_that_is_no_number_makes_no_attribute_and_is_told_of(text: str) -> None:
    made = extractor(MEMORY)
    on(made, "n1", {"nvidia.com/gpu.memory": text})
    assert said(made, "n1") == {}
    assert made.describe()["unread"] == {"n1": {"nvidia.com/gpu.memory": text}}


def test_what_cant_be_read_is_logged_once() -> None:
    made = extractor(MEMORY)
    with capture_logs() as logs:
        for _ in range(3):
            on(made, "n1", {"nvidia.com/gpu.memory": "many"})
        on(made, "n1", {"nvidia.com/gpu.memory": "few"})
        on(made, "n1", {"nvidia.com/gpu.memory": "8"})
    assert [log["labels"] for log in logs] == [{"nvidia.com/gpu.memory": "many"}, {"nvidia.com/gpu.memory": "few"}]
    assert made.describe() == {"nodes": {"n1": {"GPUMemory": 8.0}}, "unread": {}}


def test_it_follows_its_labels_and_forgets_a_node_that_is_gone() -> None:
    made = extractor(MEMORY, PRODUCT)
    on(made, "n1", {"nvidia.com/gpu.memory": "40960", "nvidia.com/gpu.product": "A100"})
    assert on(made, "n1", {"nvidia.com/gpu.memory": "81559"})
    assert said(made, "n1") == {"GPUMemory": 81559.0}
    assert on(made, "n1", {}, Change.DELETED)
    assert said(made, "n1") == {}


def test_a_nodes_heartbeat_concerns_no_endpoint() -> None:
    """Nodes report every few seconds; nothing is worked out anew for it."""
    made = extractor(MEMORY)
    labels = {"nvidia.com/gpu.memory": "81559"}
    assert on(made, "n1", labels, Change.ADDED)
    assert not on(made, "n1", {**labels, "unrelated": "label"})
    assert not on(made, "n2", {"unrelated": "label"}, Change.ADDED)
    assert not on(made, "n2", {}, Change.DELETED)
    assert not on(made, "n3", None)
    assert made.describe()["unread"] == {}


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ([], "plugins[0].parameters.attributes"),
        ([{"label": "a"}], "plugins[0].parameters.attributes[0].attributeKey: required, and missing"),
        ([{"label": "", "attributeKey": "A"}], "plugins[0].parameters.attributes[0].label"),
        ([MEMORY, {**PRODUCT, "attributeKey": "GPUMemory"}], "'GPUMemory' is made by attributes[0] too"),
        ([{**PRODUCT, "values": {"H100": "best"}}], "plugins[0].parameters.attributes[0].values"),
        ([{**MEMORY, "unit": "MB"}], "plugins[0].parameters.attributes[0].unit"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(attributes: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(Invalid) as caught:
        load(document(*attributes), Registry.installed())
    assert problem in str(caught.value)


def test_a_scorer_finds_the_attribute_by_the_extractors_type() -> None:
    scorer = (
        "- type: endpoint-attribute-scorer\n"
        "  parameters:\n"
        "    attributeKey: GPUClass\n"
        "    producer: node-labels-extractor\n"
        "    algorithm: {type: linear_higher_is_better}\n"
    )
    config = load(document(PRODUCT, name="hardware") + scorer, Registry.installed())
    assert config.inputs["endpoint-attribute-scorer"] == {"attributeKey": AttributeKey("GPUClass", "hardware", float)}
