"""A replay says where decisions would have gone with another configuration, and what of it isn't known."""

import asyncio
import io
import time
from collections.abc import Callable
from itertools import count
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given

from services.picker.reports import replay as replaying
from services.picker.reports.past_records import Records
from services.picker.reports.replay import OUT_OF_TIME, UNSCHEDULED, replay
from services.picker.reports.replay_responder import CHILD, DocumentRules, ReplayResponder
from services.picker.scheduling import profile
from shared.attributes import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE
from shared.bus.query_messages import ReplayQuery
from shared.bus.responder import QueryRefused
from shared.service import replay as reports
from shared.service.replay import Move, Replay
from tests.children import children_end_before_the_loop
from tests.unit.services.picker.handler import REGISTRY, PickerUnderTest
from tests.unit.services.picker.reports.test_rehearsal import known, made, ready, worlds
from tests.unit.services.picker.world import NOW, endpoint, facts, pool, report

__all__ = ["children_end_before_the_loop"]

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


def replayed(
    picker: PickerUnderTest,
    text: str,
    *,
    meanwhile: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = lambda: NOW,
    **query: Any,
) -> Replay:
    """What the child makes of what it is sent; `meanwhile` happens after each piece."""
    asked = ReplayQuery(text=text, **query)
    sent = io.BytesIO()
    for piece in ReplayResponder(picker.handler, DocumentRules()).messages(asked, NOW + asked.seconds):
        sent.write(piece)
        meanwhile()
    sent.seek(0)
    return replay(Records(sent), REGISTRY, clock)


def patient(picker: PickerUnderTest, child: str = CHILD) -> ReplayResponder:
    """One whose child has all the time it needs."""
    picker.handler.clock = lambda: time.monotonic() + 3600
    return ReplayResponder(picker.handler, DocumentRules(), child, grace=3600)


async def answered(replays: ReplayResponder, text: str, **query: Any) -> Replay:
    """By a child."""
    content = bytearray()
    for part in replays.answer(ReplayQuery(text=text, **query)):
        if isinstance(part, asyncio.Future):
            await asyncio.wait((part,))
        else:
            content += part
            await asyncio.sleep(0)
    return msgspec.json.decode(content, type=Replay)


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


MANY = 10_000
"""Draws that find even what a weighted choice rarely picks."""


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
    with patch.object(replaying, "MAX_DRAWS", MANY), patch.multiple(profile, MAX_TRIALS=MANY, SILENT_TRIALS=MANY):
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


def test_no_more_moves_are_sent_than_are_read(picker: PickerUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MAX_ENTRIES", 0)
    found = replayed(picker, ONLY_B)
    assert (found.elsewhere, found.moves) == (3, ())


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
        picker.view.reset(
            facts(*(endpoint(f"new{number_of_new}") for number_of_new in range(number % 3)), *endpoints[number % 2 :])
        )
        report(picker.view, {RUNNING_REQUESTS_SIZE: [1] * len(picker.view.layout)}, now=NOW + number)

    text = document("running-requests-size-scorer", "lora-affinity-scorer")
    found = replayed(picker, text, meanwhile=come_and_go)
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
    times = iter([NOW, NOW + 30, NOW + 30])
    found = replayed(picker, QUEUES, clock=lambda: next(times))
    assert (found.decisions, found.replayed, found.skipped) == (3, 1, {OUT_OF_TIME: 2})


def test_decisions_that_cant_be_sent_in_time_are_counted(picker: PickerUnderTest) -> None:
    times = iter([NOW, NOW, NOW + 30])
    picker.handler.clock = lambda: next(times)
    found = replayed(picker, QUEUES)
    assert (found.decisions, found.replayed, found.skipped) == (3, 1, {OUT_OF_TIME: 2})


async def test_a_child_replays(picker: PickerUnderTest) -> None:
    text = document("queue-scorer", "label-selector-filter", label_selector_filter="matchLabels: {tier: b}")
    here = replayed(picker, text)
    replays = patient(picker)
    assert await answered(replays, text) == here
    wrong = await answered(replays, text.replace("EndpointPickerConfig", "Pod"))
    assert {error.partition(":")[0] for error in wrong.errors} >= {"kind"}


async def test_a_child_that_fails_costs_only_the_answer(picker: PickerUnderTest) -> None:
    with pytest.raises(QueryRefused, match="exited with status 1"):
        await answered(patient(picker, "this.that"), QUEUES)


async def test_one_document_is_replayed_at_a_time(picker: PickerUnderTest) -> None:
    here = replayed(picker, QUEUES)
    replays = patient(picker)
    first = replays.answer(ReplayQuery(text=QUEUES))
    starting = next(first)
    assert isinstance(starting, asyncio.Future)
    with pytest.raises(QueryRefused, match="another document"):
        next(replays.answer(ReplayQuery(text=QUEUES)))
    await starting
    first.close()  # type: ignore[attr-defined]  # as the responder does when nobody waits any more
    assert await answered(replays, QUEUES) == here


def test_however_large_the_pool_every_piece_is_small() -> None:
    """The most that a picker makes of it in one step."""
    view = pool(*(endpoint(f"a{number}") for number in range(3000)))
    report(view, {WAITING_QUEUE_SIZE: [1.0] * 3000, KV_CACHE_USAGE: [0.0] * 3000})
    picker = PickerUnderTest(view, QUEUES)
    decide(picker, 1, 2)
    replays = ReplayResponder(picker.handler, DocumentRules())
    pieces = [len(piece) for piece in replays.messages(ReplayQuery(text=QUEUES), NOW + 1)]
    assert len(pieces) > 30
    assert max(pieces) < 256 * 1024
