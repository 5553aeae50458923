import time
from typing import Any

import msgspec
import numpy as np
import pytest

from services.picker.pipeline import Pipeline, build
from services.picker.state.topology import TOPOLOGY, Topology, TopologyExtractor
from services.picker.state.view import View
from shared.attributes import ALWAYS, AttributeMap
from shared.config import Invalid, load
from shared.datalayer.endpoints import EndpointDispatcher, EndpointEvent
from shared.datalayer.events import Change, EventCounts
from shared.model import Endpoint
from shared.plugin import Registry
from shared.plugin_failures import PluginFailures
from tests.unit.services.picker.world import NOW, facts

STANDS = {
    "kubernetes.io/hostname": "node-1",
    "topology.kubernetes.io/rack": "r7",
    "topology.kubernetes.io/zone": "eu-1a",
    "topology.kubernetes.io/region": "eu-1",
}
DOCUMENT = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: topology-extractor
"""


def pipeline(text: str = DOCUMENT) -> Pipeline:
    return build(load(text, Registry.installed()), np.random.default_rng(1), lambda: 0.0)


def extract(labels: dict[str, str], **parameters: str) -> Topology | None:
    extractor = TopologyExtractor("topology", TopologyExtractor.Parameters(**parameters))
    attributes = AttributeMap()
    extractor.on_endpoint(EndpointEvent(Change.ADDED, standing("a1", **labels)), attributes)
    return attributes.get(TOPOLOGY)


def standing(name: str, **labels: str) -> Endpoint:
    return Endpoint(id=name, name=name, address="10.0.0.1", port=8000, labels=labels)


@pytest.mark.parametrize(
    ("labels", "parameters", "found"),
    [
        (STANDS, {}, Topology("node-1", "r7", "eu-1a", "eu-1")),
        # a label that isn't there or is empty is a part that isn't known
        ({"topology.kubernetes.io/zone": "eu-1a", "topology.kubernetes.io/rack": ""}, {}, Topology(zone="eu-1a")),
        ({"app": "vllm"}, {}, None),
        ({"rack": "r7", **STANDS}, {"rack": "rack", "zone": "az"}, Topology("node-1", "r7", None, "eu-1")),
    ],
)
def test_labels_are_the_parts(labels: dict[str, str], parameters: dict[str, str], found: Topology | None) -> None:
    assert extract(labels, **parameters) == found
    assert found is None or None not in msgspec.to_builtins(found).values(), "a part that isn't known isn't shown"


def test_a_label_without_a_name_is_refused() -> None:
    with pytest.raises(Invalid, match=r"plugins\[0\].parameters.rack"):
        pipeline(DOCUMENT + '  parameters: {rack: ""}\n')


def test_listing_it_is_enough_to_have_it_hear_of_endpoints() -> None:
    assert pipeline().state()["endpoint_sources"] == [
        {"source": "endpoint-notification-source", "extractors": ["topology-extractor"]}
    ]


def test_it_follows_the_labels_and_the_endpoints_and_never_grows_old() -> None:
    """Whatever was measured at an old address is forgotten; where the endpoint stands follows from its labels."""
    view = View()
    events = EndpointDispatcher(pipeline().endpoint_feeds, view.made, EventCounts(PluginFailures(time.monotonic)))

    def parts(*endpoints: Endpoint) -> list[Any]:
        view.reset(facts(*endpoints))
        list(events.reset(view.endpoints))
        return [shown["attributes"].get(TOPOLOGY.wire) for shown in view.state(NOW + 3600.0)]

    def known(zone: str) -> dict[str, Any]:
        return {"value": Topology(zone=zone), "age": 0.0}

    zone = "topology.kubernetes.io/zone"
    assert parts(standing("a1", **{zone: "x"}), standing("a2", **{zone: "y"})) == [known("x"), known("y")]
    third = standing("a3", **{zone: "y"})
    assert parts(standing("a1", **{zone: "z"}), standing("a2"), third) == [known("z"), None, known("y")]
    assert view.columns.objects(TOPOLOGY).at.tolist() == [ALWAYS, -np.inf, ALWAYS]
    assert view.columns.newest().tolist() == [-np.inf] * 3, "that metrics are fresh is another matter"
    assert parts(third) == parts(msgspec.structs.replace(third, address="10.0.0.2")) == [known("y")]
