"""Endpoint extractors in a collector: they hear of its share, and what they find out travels with the metrics."""

import time

import httpx

from services.collector.app import CollectorService
from services.collector.settings import CollectorSettings
from shared.attributes import ALWAYS, AttributeKey, AttributeMap
from shared.datalayer.endpoints import EndpointEvent, EndpointExtractor
from shared.datalayer.events import Change
from shared.plugin import Registry, Tier
from tests.faults.collector.picker import PickerView
from tests.in_process import serving
from tests.nats import NatsServer
from tests.protocol.collector.harness import Frames, Owner, endpoint
from tests.waiting import TIMEOUT, eventually

COST = AttributeKey("Cost", "cost-extractor", float)
CLOSED_PORT = 9


class CostExtractor(EndpointExtractor):
    """What an endpoint's label says that it costs; fails where that is no number."""

    TYPE = "cost-extractor"
    TIER = Tier.COLLECTOR
    PRODUCES = (COST,)
    kept: set[str]

    def __init__(self, name: str, parameters: object = None) -> None:
        super().__init__(name, parameters)
        self.kept = set()
        MADE.append(self)

    def on_endpoint(self, event: EndpointEvent, attributes: AttributeMap) -> None:
        if event.change is Change.DELETED:
            self.kept.discard(event.endpoint.name)
            return
        self.kept.add(event.endpoint.name)
        if "cost" in event.endpoint.labels:
            attributes.put(COST, float(event.endpoint.labels["cost"]), ALWAYS)
        else:
            attributes.drop(COST)


MADE: list[CostExtractor] = []
CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: cost-extractor
- {type: queue-scorer}
"""
WITHOUT = CONFIG.replace("- type: cost-extractor\n", "")


def service(url: str, id: str) -> CollectorService:
    settings = CollectorSettings(nats_url=(url,), id=id, admin_host="127.0.0.1", admin_port=0, drain_timeout=2.0)
    return CollectorService(settings, Registry([*Registry.installed(), CostExtractor]))


def heard() -> set[str]:
    """The endpoints that the extractor of the last configuration keeps something for."""
    return MADE[-1].kept


async def test_extractors_follow_the_share_of_endpoints(nats: NatsServer, owner: Owner, frames: Frames) -> None:
    """The servers needn't answer: what follows from the endpoint itself is known all the same."""
    async with serving(service(nats.url, "one")) as each:
        await owner.publish([endpoint("a", CLOSED_PORT, cost="1.5"), endpoint("b", CLOSED_PORT)], CONFIG)
        await eventually(lambda: frames.value("a", COST) == 1.5, "the attribute")
        assert heard() == {"a", "b"}
        received = frames.reader.frames
        await eventually(lambda: frames.reader.frames > received + 2, "it is said again and again")
        await owner.publish([endpoint("a", CLOSED_PORT, cost="2"), endpoint("c", CLOSED_PORT, cost="no")], CONFIG)
        await eventually(lambda: frames.value("a", COST) == 2.0, "the label's change")
        await eventually(lambda: heard() == {"a", "c"}, "what is kept for an endpoint that went is let go")
        value = each.registry.get_sample_value
        assert value("pointsman_plugin_failures_total", {"plugin": "cost-extractor"}) == 1
        assert "'cost-extractor' has failed" in each.readiness.notes()["plugins"]
        async with httpx.AsyncClient(timeout=TIMEOUT) as client:
            port = each.admin_port
            answer = await client.get(f"http://127.0.0.1:{port}/debug/endpoints")
            [known] = [each for each in answer.json() if each["id"] == "default/a"]
            assert known["attributes"]["Cost"] == {"value": 2.0, "age": 0.0}
            metrics = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
            assert (
                'pointsman_datalayer_events_total{event="deleted",source="endpoint-notification-source"} 1.0' in metrics
            )
        assert {"source": "endpoint-notification-source", "extractors": ["cost-extractor"]} in each.state()["sources"]


async def test_a_picker_forgets_what_an_extractor_no_longer_says(nats: NatsServer, owner: Owner) -> None:
    """By its age it would hold for seconds, and under `lastKnown` for ever."""
    async with serving(service(nats.url, "one")), PickerView(nats.url) as picker:

        def costs() -> list[float | None]:
            known = [each["attributes"].get(COST.wire) for each in picker.view.state(time.monotonic())]
            return [None if entry is None else entry["value"] for entry in known]

        async def seen(expected: list[float | None], what: str) -> None:
            await eventually(lambda: costs() == expected, what)

        a, b = endpoint("a", CLOSED_PORT, cost="1"), endpoint("b", CLOSED_PORT, cost="2")
        await owner.publish([a, b], CONFIG)
        await seen([1.0, 2.0], "the attributes")
        await owner.publish([endpoint("a", CLOSED_PORT), b], CONFIG)
        await seen([None, 2.0], "what was dropped")
        await owner.publish([endpoint("a", CLOSED_PORT, cost="3"), endpoint("b", CLOSED_PORT, cost="no")], CONFIG)
        await seen([3.0, None], "what the extractor failed on")
        await owner.publish([endpoint("a", CLOSED_PORT, cost="3"), b], WITHOUT)
        await seen([None, None], "what left the configuration")
