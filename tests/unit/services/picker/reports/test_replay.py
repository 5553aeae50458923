"""A replay says where decisions would have gone with another configuration, and what of it isn't known."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given

from services.picker.reports.replay import OUT_OF_TIME, UNSCHEDULED, ReplayResponder
from shared.attributes import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE
from shared.bus.query_messages import AskReplay
from shared.bus.responder import Unanswerable
from shared.config import load
from shared.config.loaded import LoadedConfig
from shared.service.replay import Move, Replay
from tests.unit.services.picker.handler import REGISTRY, PickerUnderTest
from tests.unit.services.picker.reports.test_rehearsal import known, made, ready, worlds
from tests.unit.services.picker.world import NOW, endpoint, facts, pool, report

DOCUMENT = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
{plugins}
schedulingProfiles:
- name: default
  plugins:
{members}
"""


def document(*types: str, **parameters: str) -> str:
    plugins = [f"- {{type: {type}, parameters: {{{parameters.get(type.replace('-', '_'), '')}}}}}" for type in types]
    return DOCUMENT.format(
        plugins="\n".join(plugins), members="\n".join(f"  - {{pluginRef: {type}}}" for type in types)
    )


QUEUES = document("queue-scorer", "max-score-picker")
ONLY_B = document("label-selector-filter", label_selector_filter="matchLabels: {tier: b}")


def read(text: str, origin: str = "") -> LoadedConfig:
    return load(text, REGISTRY, origin)


def replayed(picker: PickerUnderTest, text: str, **question: Any) -> Replay:
    return answered(ReplayResponder(picker.handler, read), text, **question)


def answered(
    replays: ReplayResponder, text: str, meanwhile: Callable[[], None] = lambda: None, **question: Any
) -> Replay:
    """`meanwhile` happens in each pause."""

    async def answer() -> bytes:
        content = bytearray()
        for part in replays.answer(AskReplay(text=text, **question)):
            if isinstance(part, asyncio.Future):
                await asyncio.wait((part,))
            else:
                content += part
                meanwhile()
        return bytes(content)

    return msgspec.json.decode(asyncio.run(answer()), type=Replay)


def decide(picker: PickerUnderTest, *numbers: int) -> None:
    for number in numbers:
        picker.handler.schedule(picker.handler.prepare(ready(number), picker.now), picker.now)


@pytest.fixture
def picker() -> PickerUnderTest:
    """One that has sent three requests to a1, which has the shortest queue."""
    view = pool(endpoint("a1", tier="a"), endpoint("a2", tier="b"), endpoint("a3", tier="b"))
    report(view, {WAITING_QUEUE_SIZE: [0, 5, 1], RUNNING_REQUESTS_SIZE: [9, 0, 9], KV_CACHE_USAGE: [0.0, 0.0, 0.0]})
    picker = PickerUnderTest(view, QUEUES)
    decide(picker, 1, 2, 3)
    return picker


@given(worlds())
def test_with_the_document_that_decided_nothing_goes_elsewhere(world: dict[str, Any]) -> None:
    """But with scorers that remember earlier requests."""
    text = world["document"].replace("- {pluginRef: no-hit-lru-scorer, weight: 1}", "")
    picker = made({**world, "document": text})
    decide(picker, world["prompt"])
    view = picker.view
    names = [endpoint.id for endpoint in view.layout.endpoints]
    if names:
        report(view, {WAITING_QUEUE_SIZE: [9.0] * len(names), KV_CACHE_USAGE: [0.9] * len(names)}, now=NOW + 1)
        view.in_flight.charge(names[0], 1000)
    before = known(picker)
    found = replayed(picker, text)
    assert known(picker) == before
    assert found.errors == ()
    assert found.decisions == found.replayed + sum(found.skipped.values()) == len(picker.ring)
    assert (found.elsewhere, found.moves, found.failures) == (0, (), {})
    assert (found.fidelity.replayed, found.fidelity.elsewhere) == (found.replayed, 0)
    assert [gap for gap in found.gaps if not gap.input.startswith("header ")] == []


def test_decisions_that_change_are_counted_by_their_endpoints(picker: PickerUnderTest) -> None:
    found = replayed(
        picker, document("queue-scorer", "label-selector-filter", label_selector_filter="matchLabels: {tier: b}")
    )
    assert (found.decisions, found.replayed, found.elsewhere, found.by_chance) == (3, 3, 3, 0)
    assert found.moves == (Move(chosen="a1", instead="a3", decisions=3, examples=("id", "id", "id")),)


def test_an_endpoint_that_lots_may_choose_is_no_change(picker: PickerUnderTest) -> None:
    decide(picker, *range(7))
    found = replayed(picker, document("kv-cache-utilization-scorer", "max-score-picker"))
    assert (found.replayed, found.elsewhere, found.moves) == (10, 0, ())
    assert 0 < found.by_chance < 10


@pytest.mark.parametrize(
    ("text", "input", "used"),
    [
        (document("running-requests-size-scorer"), RUNNING_REQUESTS_SIZE.wire, "current"),
        (document("lora-affinity-scorer"), "ActiveModels/core-metrics-extractor", "current"),
        (document("prefix-cache-scorer"), "PrefixCacheMatchInfo/approx-prefix-cache-producer", "nothing"),
        (document("session-affinity-scorer"), "header x-session-token", "nothing"),
    ],
)
def test_inputs_that_arent_kept_are_named(picker: PickerUnderTest, text: str, input: str, used: str) -> None:
    assert (input, used, 3) in [(gap.input, gap.used, gap.decisions) for gap in replayed(picker, text).gaps]


def test_what_isnt_kept_is_taken_as_it_is_now_from_endpoints_that_are_still_there(picker: PickerUnderTest) -> None:
    picker.view.reset(facts(*picker.view.layout.endpoints[1:]))
    report(picker.view, {RUNNING_REQUESTS_SIZE: [9, 0]}, now=NOW + 1)
    assert [move.instead for move in replayed(picker, document("running-requests-size-scorer")).moves] == ["a3"]


def test_endpoints_may_come_and_go_meanwhile(picker: PickerUnderTest) -> None:
    endpoints = picker.view.layout.endpoints
    counts = count(1)

    def come_and_go() -> None:
        number = next(counts)
        picker.view.reset(facts(*(endpoint(f"new{one}") for one in range(number % 3)), *endpoints[number % 2 :]))
        report(picker.view, {RUNNING_REQUESTS_SIZE: [1] * len(picker.view.layout)}, now=NOW + number)

    text = document("running-requests-size-scorer", "lora-affinity-scorer")
    found = answered(ReplayResponder(picker.handler, read), text, come_and_go)
    assert (found.replayed, found.failures) == (3, {})


def test_looking_at_attributes_doesnt_keep_them(picker: PickerUnderTest) -> None:
    metric = document("metric-scorer", metric_scorer="metricName: nobody-reports-it")
    before = repr(picker.view.columns)
    for text in (metric, document("lora-affinity-scorer")):
        replayed(picker, text)
    assert repr(picker.view.columns) == before


def test_a_document_that_cant_be_loaded_says_why(picker: PickerUnderTest) -> None:
    found = replayed(picker, document("queue-scorer", queue_scorer="unknown: 1").replace("EndpointPickerConfig", "Pod"))
    assert (found.decisions, found.replayed) == (0, 0)
    assert {error.partition(":")[0] for error in found.errors} >= {"kind"}


def test_refused_requests_arent_replayed_unless_filters_refused_them(picker: PickerUnderTest) -> None:
    bare = PickerUnderTest(picker.view, ONLY_B.replace("tier: b", "tier: c"))
    decide(bare, 1)
    found = replayed(bare, QUEUES)
    assert found.moves == (Move(chosen="", instead="a1", decisions=1, examples=("id",)),)
    assert replayed(bare, ONLY_B.replace("tier: b", "tier: d")).elsewhere == 0
    empty = PickerUnderTest(pool(), QUEUES)
    decide(empty, 1)
    assert replayed(empty, QUEUES).skipped == {UNSCHEDULED: 1}


def test_the_newest_are_replayed_as_long_as_there_is_time(picker: PickerUnderTest) -> None:
    assert replayed(picker, QUEUES, limit=2).decisions == 2
    clock = picker.handler.clock
    times = iter([NOW, NOW, NOW + 30, NOW + 30])
    picker.handler.clock = lambda: next(times)
    found = replayed(picker, QUEUES)
    picker.handler.clock = clock
    assert (found.decisions, found.replayed, found.skipped) == (3, 1, {OUT_OF_TIME: 2})


def test_one_document_is_replayed_at_a_time(picker: PickerUnderTest) -> None:
    replays = ReplayResponder(picker.handler, read)

    async def second() -> None:
        first = replays.answer(AskReplay(text=QUEUES))
        loading = next(first)
        assert isinstance(loading, asyncio.Future)
        with pytest.raises(Unanswerable, match="another document"):
            next(replays.answer(AskReplay(text=QUEUES)))
        await asyncio.wait((loading,))
        del first

    asyncio.run(second())
    assert answered(replays, QUEUES).replayed == 3
