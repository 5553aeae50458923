import time
from typing import Any

import msgspec
import numpy as np
import pytest

from services.picker.extractors.topology import TOPOLOGY, Topology, TopologyExtractor
from services.picker.pipeline import Pipeline, build
from services.picker.state.view import View
from shared.attributes import ALWAYS, AttributeMap
from shared.config import Invalid, load
from shared.datalayer.endpoints import EndpointDispatcher, EndpointEvent
from shared.datalayer.events import Change, Tally
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


def at(labels: dict[str, str]) -> dict[str, Any]:
    return {"id": "a1", "name": "a1", "address": "10.0.0.1", "port": 8000, "labels": labels}


def standing(name: str, **labels: str) -> Endpoint:
    return Endpoint(**{**at(labels), "id": name, "name": name})


def test_the_well_known_labels_are_the_parts() -> None:
    assert extract(STANDS) == Topology("node-1", "r7", "eu-1a", "eu-1")


def test_a_label_that_isnt_there_or_is_empty_is_a_part_that_isnt_known() -> None:
    found = extract({"topology.kubernetes.io/zone": "eu-1a", "topology.kubernetes.io/rack": ""})
    assert found == Topology(zone="eu-1a")
    assert msgspec.to_builtins(found) == {"zone": "eu-1a"}


def test_an_endpoint_without_any_part_has_no_topology() -> None:
    assert extract({"app": "vllm"}) is None


def test_parameters_name_other_labels() -> None:
    assert extract({"rack": "r7", **STANDS}, rack="rack", zone="az") == Topology("node-1", "r7", None, "eu-1")


def test_a_label_without_a_name_is_refused() -> None:
    with pytest.raises(Invalid, match=r"plugins\[0\].parameters.rack"):
        pipeline(DOCUMENT + '  parameters: {rack: ""}\n')


def test_listing_it_is_enough_to_have_it_hear_of_endpoints() -> None:
    assert pipeline().state()["endpoint_sources"] == [
        {"source": "endpoint-notification-source", "extractors": ["topology-extractor"]}
    ]


def test_it_is_in_the_state_of_endpoints_and_never_grows_old() -> None:
    view = View()
    events = EndpointDispatcher(pipeline().endpoint_feeds, view.made, Tally(PluginFailures(time.monotonic)))
    view.reset(facts(standing("a1", **STANDS), standing("a2")))
    events.reset(view.endpoints)
    first, second = view.state(NOW + 3600.0)
    assert first["attributes"] == {TOPOLOGY.wire: {"value": Topology("node-1", "r7", "eu-1a", "eu-1"), "age": 0.0}}
    assert second["attributes"] == {}
    column = view.columns.objects(TOPOLOGY)
    assert column.at.tolist() == [ALWAYS, -np.inf]
    assert view.columns.newest().tolist() == [-np.inf, -np.inf], "that metrics are fresh is another matter"


def test_it_follows_the_labels_and_the_endpoints() -> None:
    view = View()
    events = EndpointDispatcher(pipeline().endpoint_feeds, view.made, Tally(PluginFailures(time.monotonic)))

    def parts() -> list[Any]:
        return [one["attributes"].get(TOPOLOGY.wire, {}).get("value") for one in view.state(NOW)]

    def now(*endpoints: Endpoint) -> None:
        view.reset(facts(*endpoints))
        events.reset(view.endpoints)

    zone = "topology.kubernetes.io/zone"
    now(standing("a1", **{zone: "x"}), standing("a2", **{zone: "y"}))
    assert parts() == [Topology(zone="x"), Topology(zone="y")]
    now(standing("a1", **{zone: "z"}), standing("a2"), standing("a3", **{zone: "y"}))
    assert parts() == [Topology(zone="z"), None, Topology(zone="y")]
    now(standing("a3", **{zone: "y"}))
    assert parts() == [Topology(zone="y")]


def test_it_stays_with_an_endpoint_whose_address_changes() -> None:
    """Whatever was measured at the old address is forgotten; where the endpoint stands follows from its labels."""
    view = View()
    events = EndpointDispatcher(pipeline().endpoint_feeds, view.made, Tally(PluginFailures(time.monotonic)))
    for address in ("10.0.0.1", "10.0.0.2"):
        moved = Endpoint(id="a1", name="a1", address=address, port=8000, labels=STANDS)
        view.reset(facts(moved))
        events.reset(view.endpoints)
        [one] = view.state(NOW)
        assert list(one["attributes"]) == [TOPOLOGY.wire]
