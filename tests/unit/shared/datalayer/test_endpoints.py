import time
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from shared.attributes import ALWAYS, AttributeKey, AttributeMap, Sample
from shared.datalayer.endpoints import (
    EndpointDispatcher,
    EndpointEvent,
    EndpointExtractor,
    EndpointNotificationSource,
)
from shared.datalayer.events import Change, EventCounts
from shared.datalayer.wiring import SourceExtractors
from shared.model import Endpoint
from shared.plugin_failures import PluginFailures

PORT = AttributeKey("Port", "port", float)
SIZE = AttributeKey("Size", "says", float)
NAMES: AttributeKey[tuple[str, ...]] = AttributeKey("Names", "says", tuple)


class Listener(EndpointExtractor):
    """Keeps what it hears, and the port as an attribute."""

    TYPE = "port"
    PRODUCES = (PORT,)

    def __init__(self, name: str = "port") -> None:
        super().__init__(name)
        self.heard: list[EndpointEvent] = []

    def on_endpoint(self, event: EndpointEvent, attributes: AttributeMap) -> None:
        self.heard.append(event)
        if event.change is not Change.DELETED:
            attributes.put(PORT, float(event.endpoint.port), ALWAYS)

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(event.change.value, event.endpoint.id) for event in self.heard]


class Broken(Listener):
    """Fails on every event, or on those of one kind."""

    def __init__(self, name: str = "broken", on: Change | None = None) -> None:
        super().__init__(name)
        self._on = on

    def on_endpoint(self, event: EndpointEvent, attributes: AttributeMap) -> None:
        if self._on in (None, event.change):
            raise RuntimeError("no such rack")
        super().on_endpoint(event, attributes)


def endpoint(name: str, **fields: Any) -> Endpoint:
    return Endpoint(**{"id": name, "name": name, "address": "10.0.0.1", "port": 8000, **fields})


class World:
    """A dispatcher and the attributes that its extractors make."""

    def __init__(self, *extractors: EndpointExtractor) -> None:
        self.attributes: dict[str, AttributeMap] = {}
        self.event_counts = EventCounts(PluginFailures(time.monotonic))
        feeds = [SourceExtractors(EndpointNotificationSource("events"), extractors)] if extractors else []
        self.events = EndpointDispatcher(feeds, self.of, self.event_counts)

    def of(self, id: str) -> AttributeMap:
        return self.attributes.setdefault(id, AttributeMap())

    def reset(self, *endpoints: Endpoint) -> Sequence[str]:
        return list(self.events.reset({endpoint.id: endpoint for endpoint in endpoints}))


A, B = endpoint("a"), endpoint("b")


@pytest.mark.parametrize("fields", [{"port": 9000}, {"labels": {"zone": "x"}}, {"address": "10.0.0.2"}, {"node": "n1"}])
def test_endpoints_come_change_and_go(fields: dict[str, Any]) -> None:
    listener = Listener()
    world = World(listener)
    moved = replace(A, **fields)
    assert world.events.upsert(A)
    assert not world.events.upsert(endpoint("a")), "known already"
    assert world.events.upsert(moved)
    world.events.delete("unknown")
    assert world.events.describe() == [{"source": "events", "extractors": ["port"]}]
    world.events.delete("a")
    assert listener.heard == [
        EndpointEvent(Change.ADDED, A),
        EndpointEvent(Change.UPDATED, moved, previous=A),
        EndpointEvent(Change.DELETED, moved),
    ]


def test_what_isnt_in_a_reset_is_told_as_deleted() -> None:
    listener = Listener()
    world = World(listener)
    world.reset(A, B)
    assert world.reset(B, endpoint("c")) == ["a", "c"]
    assert listener.told == [("added", "a"), ("added", "b"), ("deleted", "a"), ("added", "c")]


def test_extractors_are_told_of_one_endpoint_at_a_time_and_of_what_happens_meanwhile() -> None:
    listener, c, d = Listener(), endpoint("c"), endpoint("d")
    world = World(listener)
    world.reset(A)
    untold = world.events.reset({endpoint.id: endpoint for endpoint in (B, c, d)})
    assert listener.told == [("added", "a")]
    assert (next(untold), next(untold), listener.told[1:]) == ("a", "b", [("deleted", "a"), ("added", "b")])
    world.events.delete("c")
    world.events.upsert(replace(d, port=9000))
    assert (list(untold), listener.told[3:]) == ([], [("added", "d")])
    assert listener.heard[-1].endpoint.port == 9000
    untold = world.events.reset({endpoint.id: endpoint for endpoint in (A, B)})
    world.events.close()
    assert list(untold) == [], "other extractors are told"


def test_the_extractors_of_a_new_configuration_hear_of_all_endpoints() -> None:
    first, second = Listener(), Listener()
    world = World(first)
    world.reset(A, B)
    world.events.close()
    world.events = EndpointDispatcher(
        [SourceExtractors(EndpointNotificationSource("e"), (second,))], world.of, world.event_counts
    )
    world.reset(A, B)
    assert second.told == [("added", "a"), ("added", "b")]
    assert first.told == [("added", "a"), ("added", "b")]


def test_what_extractors_made_goes_with_them() -> None:
    world = World(Listener())
    world.reset(A)
    assert world.of("a").get(PORT) == 8000.0
    world.events.close()
    assert world.of("a").sample(PORT) == Sample(None, ALWAYS), "pickers are told"


def test_without_extractors_nothing_is_kept() -> None:
    world = World()
    assert world.reset(A, B) == []
    assert not world.events.upsert(A)
    assert world.events.describe() == []


def test_a_failing_extractor_stops_no_other() -> None:
    before, after = Listener("before"), Listener("after")
    world = World(before, Broken(), after)
    world.reset(A, B)
    assert before.told == after.told == [("added", "a"), ("added", "b")]
    assert world.event_counts.failures.counts() == {"before": 0, "broken": 2, "after": 0}


def test_a_failing_extractor_leaves_no_attribute_of_before() -> None:
    """It followed from what the endpoint was: as it never ages, it would be wrong for ever."""
    world = World(Broken(on=Change.UPDATED))
    world.events.upsert(A)
    assert world.of("a").get(PORT) == 8000.0
    world.events.upsert(replace(A, port=9000))
    assert world.of("a").sample(PORT) == Sample(None, ALWAYS)


class Says(EndpointExtractor):
    """Puts what it is told to."""

    TYPE = "says"
    PRODUCES: ClassVar[tuple[AttributeKey[Any], ...]] = (SIZE, NAMES)

    def __init__(self, says: dict[AttributeKey[Any], Any]) -> None:
        super().__init__("says")
        self.says = says

    def on_endpoint(self, event: EndpointEvent, attributes: AttributeMap) -> None:
        for key, value in self.says.items():
            attributes.put(key, value, ALWAYS)


def test_what_an_extractor_declares_and_doesnt_say_is_denied() -> None:
    says = Says({SIZE: 2.0, NAMES: ("x",)})
    world = World(says)
    world.events.upsert(A)
    assert dict(world.of("a").items()) == {SIZE: Sample(2.0, ALWAYS), NAMES: Sample(("x",), ALWAYS)}
    says.says = {}
    world.of("a").drop(SIZE)
    world.of("a").drop(NAMES)
    world.events.upsert(replace(A, port=9000))
    assert dict(world.of("a").items()) == {SIZE: Sample(None, ALWAYS), NAMES: Sample(None, ALWAYS)}
    assert world.event_counts.failures.counts() == {"says": 0}


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ({SIZE: "large"}, "ValueError: Size/says is 'large'; a finite number is expected"),
        ({NAMES: ["x"]}, "ValueError: Names/says is ['x']; a tuple is expected"),
        ({PORT: 1.0}, "Port/port isn't among what it declares to produce"),
    ],
)
def test_a_value_that_would_break_the_readers_costs_only_itself(
    says: dict[AttributeKey[Any], Any], reason: str
) -> None:
    world = World(Listener(), Says(says))
    with capture_logs() as logs:
        world.events.upsert(A)
    assert [line["reason"] for line in logs] == [reason]
    assert {key.name: sample.value for key, sample in world.of("a").items()} == {
        "Port": 8000.0,
        "Size": None,
        "Names": None,
    }
    assert world.event_counts.failures.counts() == {"port": 0, "says": 1}


def test_events_are_metrics() -> None:
    world = World(Broken())
    world.reset(A, B)
    world.reset(A)
    registry = CollectorRegistry()
    registry.register(world.event_counts)
    assert registry.get_sample_value("pointsman_datalayer_events_total", {"source": "events", "event": "added"}) == 2
    assert registry.get_sample_value("pointsman_datalayer_events_total", {"source": "events", "event": "deleted"}) == 1


def test_counts_end_with_the_configuration_that_has_the_source_and_the_extractor() -> None:
    world = World(Broken())
    world.reset(A)
    assert world.event_counts.failures.counts() == {"broken": 1}
    EndpointDispatcher((), world.of, world.event_counts)
    assert (world.event_counts.events, world.event_counts.failures.counts()) == ({}, {})
