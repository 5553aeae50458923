"""Between which numbers attributes can be, and what becomes of those that are beyond."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from shared.attributes import (
    ANY,
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    GPU_UTILIZATION,
    KV_CACHE_USAGE,
    MAX_ACTIVE_MODELS,
    REACHABLE,
    RUNNING_REQUESTS_SIZE,
    STANDARD_KEYS,
    WAITING_QUEUE_SIZE,
    AttributeKey,
    AttributeMap,
    Bounds,
    bounds_of,
)
from shared.datalayer.endpoints import EndpointDispatcher, EndpointEvent, EndpointExtractor, EndpointNotificationSource
from shared.datalayer.events import EventCounts
from shared.datalayer.wiring import SourceExtractors
from shared.model import Endpoint
from shared.out_of_range import MENTIONED, NAMED, OTHERS, OutOfRange
from shared.plugin_failures import PluginFailures

USUAL = {
    WAITING_QUEUE_SIZE: (0, 100_000),
    RUNNING_REQUESTS_SIZE: (0, 100_000),
    KV_CACHE_USAGE: (0, 1, 1.01),
    CACHE_BLOCK_SIZE: (1, 16, 128, 4096),
    CACHE_NUM_BLOCKS: (1, 20_000_000),
    MAX_ACTIVE_MODELS: (0, 1000),
    GPU_UTILIZATION: (0, 1),
    REACHABLE: (0, 1),
}
WRONG = (math.inf, -math.inf, 1.7e308, 1e200, -1, 10**17, 10**400, -(10**400))


def test_every_standard_attribute_has_bounds_of_its_own() -> None:
    assert [key for key in STANDARD_KEYS if key.kind is float and key.bounds == ANY] == []


@pytest.mark.parametrize("key", USUAL, ids=str)
def test_what_servers_say_is_within_the_bounds_and_what_they_cant_mean_isnt(key: AttributeKey[float]) -> None:
    attributes = AttributeMap()
    for value in USUAL[key]:
        attributes.put(key, value, at=1.0)
        assert attributes.get(key) == value
    last = attributes.sample(key)
    for value in WRONG:
        assert not attributes.put(key, value, at=2.0)
        assert attributes.sample(key) is last, "what was known before ages"
        assert attributes.take_refused().keys() == {key}
    assert attributes.take_refused() == {}


def test_an_attribute_that_names_no_bounds_holds_what_sums_and_squares_stay_finite_of() -> None:
    key, attributes = AttributeKey("Anything", "mine", float), AttributeMap()
    for value in (2.0**64, -(2.0**64)):
        assert attributes.put(key, value, at=1.0)
        assert math.isfinite(1e6 * value**2)
    for value in (1e20, math.inf):
        assert not attributes.put(key, value, at=1.0)
        assert attributes.take_refused() == {key: (value, ANY)}


def test_who_names_no_bounds_means_those_that_the_attribute_has() -> None:
    read = AttributeKey("Bounded", "mine", float)
    made = AttributeKey("Bounded", "mine", float, Bounds(0, 7))
    assert AttributeKey("Bounded", "mine", float) is read is made
    assert read.bounds == bounds_of("Bounded/mine") == Bounds(0, 7)
    assert bounds_of("Unknown/mine") == ANY
    with pytest.raises(ValueError, match="Bounded/mine is from 0 to 7, not from 0 to 8"):
        AttributeKey("Bounded", "mine", float, Bounds(0, 8))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_numbers_that_arent_taken_are_counted_and_named() -> None:
    clock = Clock()
    found, registry = OutOfRange(clock), CollectorRegistry()
    registry.register(found)
    assert found.note() is None
    with capture_logs() as logs:
        for _ in range(3):
            found.record("Size/x", 1e200, Bounds(0, 7), endpoint="default/a", source="metrics")
        clock.now += 61.0
        found.record("Size/x", math.inf, Bounds(0, 7), 2, endpoint="default/b", sender="c1")
    assert [(line["attribute"], line["value"], line["since_last_line"]) for line in logs] == [
        ("Size/x", "1e+200", 1),
        ("Size/x", "inf", 4),
    ]
    assert logs[0]["expected"] == "0 to 7"
    counted = registry.get_sample_value("pointsman_attribute_values_out_of_range_total", {"attribute": "Size/x"})
    assert counted == 5
    clock.now += 5.0
    assert found.note() == (
        "numbers that can't be weren't taken: Size/x was inf (endpoint 'default/b', sender 'c1') 5 s ago; "
        "0 to 7 is expected, 5 numbers weren't"
    )
    clock.now += 60.0
    assert found.note() is None


def test_names_out_of_frames_take_a_bounded_room() -> None:
    found, registry = OutOfRange(Clock()), CollectorRegistry()
    registry.register(found)
    with capture_logs():
        for number in range(2 * NAMED):
            found.record(f"{number}" + "x" * 10_000, 1e200, ANY, endpoint="e" * 10_000)
    (family,) = registry.collect()
    assert len(family.samples) == NAMED + 1
    assert {sample.labels["attribute"]: sample.value for sample in family.samples}[OTHERS] == NAMED
    note = found.note() or ""
    assert f"{NAMED + 1 - MENTIONED} more" in note
    assert len(note) < 10_000


SIZE = AttributeKey("Width", "sizes", float, Bounds(0, 10))


class Sizes(EndpointExtractor):
    TYPE = "sizes"
    PRODUCES = (SIZE,)

    def on_endpoint(self, event: EndpointEvent, attributes: AttributeMap) -> None:
        attributes.put(SIZE, float(event.endpoint.labels["size"]), at=1.0)


@pytest.mark.parametrize(("size", "value"), [("3", 3.0), ("11", None), ("inf", None)])
def test_what_an_endpoint_extractor_makes_is_absent_where_it_is_beyond(size: str, value: float | None) -> None:
    failures = PluginFailures(Clock())
    known: dict[str, AttributeMap] = {}
    attributes: Callable[[str], AttributeMap] = lambda id: known.setdefault(id, AttributeMap())  # noqa: E731
    feed: Any = SourceExtractors(EndpointNotificationSource("endpoints"), (Sizes("sizes"),))
    dispatcher = EndpointDispatcher([feed], attributes, EventCounts(failures))
    with capture_logs():
        for label in ("5", size):
            dispatcher.upsert(Endpoint(id="a", name="a", address="10.0.0.1", port=1, labels={"size": label}))
    assert known["a"].get(SIZE) == value
    assert failures.counts() == {"sizes": int(value is None)}
