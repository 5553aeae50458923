"""A rehearsal foretells what the next request gets, and nobody learns of it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.picker.decision import Decision
from services.picker.extproc.events import RequestHead, RequestReady
from services.picker.reports.explain import explain
from services.picker.reports.reasons import changes, reasons
from services.picker.reports.reports import Parts
from services.picker.request import Headers, Route
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from shared.bus.query_messages import ExplainQuery
from tests.unit.services.picker.handler import PickerUnderTest
from tests.unit.services.picker.world import NOW, endpoint, load, pool, report

PROFILE = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: active-request-scorer
- type: no-hit-lru-scorer
- {{type: label-selector-filter, parameters: {{matchLabels: {{tier: a}}}}}}
- {{type: probabilistic-admitter}}
- {picker}
schedulingProfiles:
- name: default
  plugins:
  {filters}
  - {{pluginRef: queue-scorer, weight: 2}}
  - {{pluginRef: kv-cache-utilization-scorer, weight: 1}}
  - {{pluginRef: prefix-cache-scorer, weight: 3}}
  - {{pluginRef: active-request-scorer, weight: 1}}
  - {{pluginRef: no-hit-lru-scorer, weight: 1}}
  - {{pluginRef: {name}}}
"""
DOCUMENTS = [
    PROFILE.format(picker=f"{{type: {name}, parameters: {{maxNumOfEndpoints: {count}}}}}", name=name, filters=filters)
    for name in ("max-score-picker", "weighted-random-picker", "random-picker")
    for count in (1, 3)
    for filters in ("", "- {pluginRef: label-selector-filter}")
]

levels = st.sampled_from([0.0, 0.0, 1.0, 5.0])


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    size = draw(st.integers(0, 9))
    each = st.lists(levels, min_size=size, max_size=size)
    return {
        "document": draw(st.sampled_from(DOCUMENTS)),
        "labels": draw(st.lists(st.sampled_from("ab"), min_size=size, max_size=size)),
        "queues": draw(each),
        "usage": [value / 5 for value in draw(each)],
        "ages": draw(st.sampled_from([0.0, 0.5, 60.0])),
        "peer": draw(each),
        "earlier": draw(st.lists(st.integers(0, 3), max_size=6)),
        "prompt": draw(st.integers(0, 3)),
        "priority": draw(st.sampled_from([None, "-1"])),
    }


def made(world: Mapping[str, Any]) -> PickerUnderTest:
    """A picker in this state."""
    names = [f"e{at}" for at in range(len(world["labels"]))]
    view = pool(*(endpoint(name, tier=label) for name, label in zip(names, world["labels"], strict=True)))
    report(view, {WAITING_QUEUE_SIZE: world["queues"], KV_CACHE_USAGE: world["usage"]}, world["ages"])
    view.apply_load(load("peer", {name: (int(n), 10) for name, n in zip(names, world["peer"], strict=True) if n}), NOW)
    picker = PickerUnderTest(view, world["document"])
    for number in world["earlier"]:
        decided = picker.handler.schedule(picker.handler.prepare(ready(number), NOW), NOW)
        if isinstance(decided.outcome, Route):
            view.in_flight.charge(decided.layout.endpoints[decided.picked[0]].id, decided.tokens)
    return picker


def ready(number: int) -> RequestReady:
    text = f"{number} " * 300
    head = RequestHead(
        headers=Headers([(":method", "POST"), ("x-request-id", "id")]),
        path="/v1/completions",
        method="POST",
        request_id="id",
        subset=None,
        received_at=NOW,
    )
    return RequestReady(head, f'{{"model":"m","prompt":"{text}"}}'.encode())


def trials(picker: PickerUnderTest, prompt: int) -> tuple[Decision, Iterator[Sequence[int]]]:
    handler = picker.handler
    prepared = handler.prepare(ready(prompt), NOW)
    return handler.pipeline.director.rehearse(prepared, picker.view, NOW, queues=False)


def rehearsed(picker: PickerUnderTest, prompt: int) -> tuple[Decision, Sequence[int]]:
    """What is foretold, and the rows that could be the first choice."""
    foretold, steps = trials(picker, prompt)
    return foretold, [(), *steps][-1]


def known(picker: PickerUnderTest) -> tuple[Any, ...]:
    """What requests change."""
    view = picker.view
    blocks = {name: view.prefixes.blocks_of(name) for name in view.layout.index}
    state = picker.handler.pipeline.director.random.bit_generator.state
    return (
        blocks,
        view.in_flight.own(),
        picker.ring.total,
        picker.handler.open,
        str(state),
        picker.handler.pipeline.state(),
    )


@given(worlds())
def test_a_rehearsal_foretells_the_next_request_and_changes_nothing(world: Mapping[str, Any]) -> None:
    picker = made(world)
    handler = picker.handler
    before = known(picker)
    foretold, possible = rehearsed(picker, world["prompt"])
    assert known(picker) == before
    assert reasons(foretold, possible)
    assert isinstance(changes(foretold), list)
    decided = handler.schedule(handler.prepare(ready(world["prompt"]), NOW), NOW)
    assert (foretold.outcome, foretold.picked, foretold.roles, foretold.tokens) == (
        decided.outcome,
        decided.picked,
        decided.roles,
        decided.tokens,
    )
    if decided.picked:
        assert decided.picked[0] in possible


@given(worlds())
def test_an_answer_to_explain_is_what_the_next_request_gets(world: Mapping[str, Any]) -> None:
    picker = made(world)
    handler, request = picker.handler, ready(world["prompt"])
    unused: Any = None
    flow: Any = SimpleNamespace(controller=None)
    parts = Parts(
        replica=unused,
        frames=unused,
        view=picker.view,
        handler=handler,
        ring=picker.ring,
        flow=flow,
        load=unused,
        prefixes=unused,
    )
    head = request.head
    headers = [("x-request-id", head.request_id)]
    query = ExplainQuery(method=head.method, path=head.path, headers=headers, body=request.body)
    answer = json.loads(b"".join(explain(parts, query)))
    got = handler.schedule(handler.prepare(request, NOW), NOW).summary()
    for field in ("request_id", "model", "target_model", "priority", "endpoint", "destinations", "refused"):
        assert answer.get(field) == got.get(field), field
    if got.get("endpoint"):
        assert got["endpoint"] in answer["possible"]


@given(worlds(), st.integers(0, 2**32))
def test_ties_are_told_whatever_lot_is_drawn(world: Mapping[str, Any], seed: int) -> None:
    world = {**world, "document": DOCUMENTS[0]}
    picker = made(world)
    handler = picker.handler
    director = handler.pipeline.director
    foretold, possible = rehearsed(picker, world["prompt"])
    director.random.bit_generator.state = np.random.default_rng(seed).bit_generator.state
    decided = handler.schedule(handler.prepare(ready(world["prompt"]), NOW), NOW)
    assert set(decided.picked[:1]) <= set(possible)
    if len(possible) > 1:
        names = [foretold.layout.endpoints[row].id for row in possible]
        assert f"drawn at random among {', '.join(names[:5])}" in reasons(foretold, possible)[0]


ALIKE: Mapping[str, Any] = {
    "document": next(document for document in DOCUMENTS if "random-picker" in document),
    "labels": "aaaaa",
    **dict.fromkeys(("queues", "usage", "peer"), [0.0] * 5),
    "ages": 0.0,
    "earlier": [],
}


def test_each_trial_is_a_step_of_its_own() -> None:
    """All of them take long: the picker decides about requests in between."""
    found = [len(possible) for possible in trials(made(ALIKE), 0)[1]]
    assert found[-1] == 5
    assert all(after - before in (0, 1) for before, after in pairwise(found))


def test_trials_end_when_the_endpoints_change() -> None:
    picker = made(ALIKE)
    _, steps = trials(picker, 0)
    next(steps)
    picker.view.upsert("pool.endpoint.new", endpoint("new"))
    assert list(steps) == []
