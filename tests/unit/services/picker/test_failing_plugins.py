"""Third-party plugins that fail: each costs its own part of a decision, and the decision says so."""

import json
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from services.picker.decision import Decision
from services.picker.director import Director
from services.picker.metadata import OBJECTIVE_HEADERS
from services.picker.parsers.parser import Parser
from services.picker.pipeline import Pipeline, build
from services.picker.request import Content, Headers, Refusal, Request, Route
from services.picker.scheduling.cycle import PREFIX_MATCH, Cycle, PrefixMatch
from services.picker.scheduling.interfaces import Filter, Picker, Producer, ProfileHandler, SaturationDetector, Scorer
from services.picker.scheduling.record import PluginFailure, ProfileRun
from services.picker.scheduling.scorers.prefix_cache import PrefixCacheScorer
from services.picker.state.layout import Floats, Rows
from services.picker.state.view import View
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from shared.config import load
from shared.model import Model, Objective
from shared.plugin import Plugin, Registry
from tests.unit.services.picker.extproc.proxy import LEAN, body, headers
from tests.unit.services.picker.handler import PickerUnderTest, destinations, refused
from tests.unit.services.picker.world import NOW, pool, report, request

Does = Callable[..., Any]


def fails(*_: Any) -> Any:
    raise KeyError("gpu")


class Bad:
    """Plugins of which a test writes down what they do, and then do."""

    does: ClassVar[Does]
    then: ClassVar[Does]


class BadScorer(Bad, Scorer):
    TYPE = "bad-scorer"

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        return type(self).does(rows)  # type: ignore[no-any-return]


class BadHeir(PrefixCacheScorer):
    """Of a scorer whose scores needn't be looked at."""

    TYPE = "bad-heir"

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        return np.array([np.nan, 0.2, 1.0])


class BadFilter(Bad, Filter):
    TYPE = "bad-filter"

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        return type(self).does(rows)  # type: ignore[no-any-return]


class BadPicker(Bad, Picker):
    TYPE = "bad-picker"

    def pick(self, cycle: Cycle, rows: Rows, totals: Floats) -> list[int]:
        return type(self).does(totals)  # type: ignore[no-any-return]


class BadHandler(Bad, ProfileHandler):
    TYPE = "bad-handler"

    def next_profiles(self, cycle: Cycle, names: tuple[str, ...], results: dict[str, ProfileRun]) -> tuple[str, ...]:
        return type(self).does(names, results)  # type: ignore[no-any-return]

    def primary(self, cycle: Cycle, results: dict[str, ProfileRun]) -> str:
        return type(self).then(results)  # type: ignore[no-any-return]


class BadProducer(Bad, Producer):
    TYPE = "bad-producer"
    PRODUCES = (PREFIX_MATCH,)

    def produce(self, cycle: Cycle) -> None:
        type(self).does(cycle)

    def picked(self, cycle: Cycle, row: int) -> Any:
        return type(self).then(cycle, row)


class BadDetector(Bad, SaturationDetector):
    TYPE = "bad-detector"

    def saturation(self, cycle: Cycle, rows: Rows) -> float:
        return type(self).does(rows)  # type: ignore[no-any-return]


class BadParser(Bad, Parser):
    TYPE = "bad-parser"
    accepts: ClassVar[Does] = lambda _: True

    def takes(self, headers: Headers) -> bool:
        return type(self).accepts(headers)  # type: ignore[no-any-return]

    def parse(self, path: str, headers: Headers, body: bytes) -> Content:
        return type(self).does(body)  # type: ignore[no-any-return]


class GoodParser(Parser):
    TYPE = "good-parser"

    def parse(self, path: str, headers: Headers, body: bytes) -> Content:
        return Content(api="good")


BAD: list[type[Plugin]] = [BadScorer, BadHeir, BadFilter, BadPicker, BadHandler, BadProducer, BadDetector, BadParser]
REGISTRY = Registry([*Registry.installed(), *BAD, GoodParser])
HEADER = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"


class World:
    """A pool of three, of which a1 has the shortest queue, and a configuration with a plugin that fails."""

    def __init__(self, *plugins: str, more: str = "", **options: Any) -> None:
        self.view: View = pool("a1", "a2", "a3")
        report(self.view, {WAITING_QUEUE_SIZE: [0, 5, 10], KV_CACHE_USAGE: [0.1, 0.1, 0.1]})
        self.heard: list[tuple[str, str, str]] = []
        document = HEADER + "".join(f"- type: {kind}\n" for kind in plugins) + more
        self.pipeline: Pipeline = build(
            load(document, REGISTRY),
            np.random.default_rng(5),
            lambda: 0.0,
            failed=lambda plugin, error, id: self.heard.append((plugin, type(error).__name__, id)),
            **options,
        )

    @property
    def director(self) -> Director:
        return self.pipeline.director

    def decide(self, asked: Request | None = None) -> Decision:
        return self.director.decide(asked or request(b"x" * 600), self.view, NOW)


def endpoint(decision: Decision) -> str:
    assert isinstance(decision.outcome, Route), decision.outcome
    return decision.layout.endpoints[decision.picked[0]].id


def failed(decision: Decision) -> list[tuple[str, str]]:
    return [(failure.plugin, failure.role) for failure in decision.failures]


def corrupts(totals: Floats) -> list[int]:
    totals[:] = 0
    return [0]


def all_of(names: tuple[str, ...], results: Any) -> tuple[str, ...]:
    return () if results else names


def first(results: dict[str, ProfileRun]) -> str:
    return next(iter(results))


def half_done(cycle: Cycle) -> None:
    cycle.put(PREFIX_MATCH, PrefixMatch(np.array([0.0, 0.0, 4.0]), 4, 16))
    fails()


def matches(matched: Any, total: Any = 4, block: Any = 16) -> Does:
    return lambda cycle: cycle.put(PREFIX_MATCH, PrefixMatch(matched, total, block))


FAULTS: dict[tuple[type[Plugin], str], dict[str, Does | tuple[Does, Does]]] = {
    (BadScorer, "scorer"): {
        "raises": fails,
        "one value": lambda rows: np.ones(1),
        "0-d": lambda rows: np.array(1.0),
        "a number": lambda rows: 1.0,
        "nothing": lambda rows: None,
        "a list": lambda rows: [0.0, 0.0, 1.0],
        "too many": lambda rows: np.ones(len(rows) + 1),
        "a table": lambda rows: np.ones((len(rows), 1)),
        "texts": lambda rows: np.array(["1.0"] * len(rows)),
        "objects": lambda rows: np.array([1.0] * len(rows), object),
        "complex": lambda rows: np.ones(len(rows), complex),
        "all NaN": lambda rows: np.full(len(rows), np.nan),
    },
    (BadFilter, "filter"): {
        "raises": fails,
        "a mask": lambda rows: rows == 2,
        "a list": lambda rows: [2],
        "nothing": lambda rows: None,
        "numbers": lambda rows: np.array([2.0]),
        "no endpoint": lambda rows: np.array([7], np.intp),
        "below": lambda rows: np.array([-1], np.intp),
        "more than there are": lambda rows: np.array([2] * 9, np.intp),
    },
    (BadPicker, "picker"): {
        "raises": fails,
        "none": lambda totals: [],
        "nothing": lambda totals: None,
        "not a candidate": lambda totals: [3],
        "below": lambda totals: [-1],
        "no row": lambda totals: [0.5],
        "text": lambda totals: ["a1"],
        "a fallback that is none": lambda totals: [0, 9],
        "changes the totals": corrupts,
    },
    (BadHandler, "profile handler"): {
        "raises": (fails, first),
        "no such profile": (lambda names, results: ("else",), first),
        "for ever": (lambda names, results: names, first),
        "none": (lambda names, results: (), first),
        "no primary": (all_of, fails),
        "another primary": (all_of, lambda results: "else"),
        "no name": (all_of, lambda results: []),
    },
    (BadProducer, "data producer"): {
        "raises": fails,
        "raises when half done": half_done,
        "of other endpoints": matches(np.ones(7)),
        "NaN": matches(np.array([np.nan, 1.0, 0.0])),
        "less than none": matches(np.array([-1.0, 0.0, 1.0])),
        "more than there are": matches(np.array([0.0, 1.0, 5.0])),
        "infinitely many": matches(np.array([0.0, 1.0, np.inf]), total=np.inf),
        "a table": matches(np.ones((3, 1))),
        "texts": matches(np.array(["1"] * 3)),
        "a list": matches([1.0, 1.0, 1.0]),
        "blocks of no size": matches(np.ones(3), block=np.nan),
        "fails to learn of the pick": (lambda cycle: None, fails),
    },
    (BadDetector, "saturation detector"): {
        "raises": fails,
        "NaN": lambda rows: np.nan,
        "nothing": lambda rows: None,
        "a text": lambda rows: "full",
    },
}
PRODUCER = """\
- type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: bad-producer}
- {type: inflight-load-producer}
"""
MORE = {"bad-producer": PRODUCER, "bad-detector": "flowControl: {saturationDetector: {pluginRef: bad-detector}}\n"}


@pytest.mark.parametrize(
    ("kind", "role", "does"),
    [
        pytest.param(*key, does, id=f"{key[1]}: {name}")
        for key, faults in FAULTS.items()
        for name, does in faults.items()
    ],
)
def test_what_a_failing_plugin_does_is_left_out_and_the_others_decide(
    kind: Any, role: str, does: Does | tuple[Does, Does]
) -> None:
    """Scores of 0, every endpoint, any of them, the first profile, no cached block, no saturation."""
    kind.does, kind.then = does if isinstance(does, tuple) else (does, lambda *_: None)
    last = () if kind is BadPicker else ("max-score-picker",)
    world = World(kind.TYPE, "queue-scorer", *last, more=MORE.get(kind.TYPE, ""))
    world.view.upsert("pool.objective.low", Objective(name="low", priority=-1))
    asked = request(b"x" * 600, headers=[(OBJECTIVE_HEADERS[0], "low")] if kind is BadDetector else [])
    decisions = [world.decide(asked) for _ in range(60 if kind is BadPicker else 1)]
    assert {endpoint(decision) for decision in decisions} == ({"a1", "a2", "a3"} if kind is BadPicker else {"a1"})
    for decision in decisions:
        assert (failed(decision), decision.tokens, decision.saturation) == ([(kind.TYPE, role)], 150, None)
        assert decision.runs["default"].rows.tolist() == [0, 1, 2]
        explained = json.loads(json.dumps(decision.explain(), allow_nan=False))
        assert [(failure["plugin"], failure["role"]) for failure in explained["plugin_failures"]] == [(kind.TYPE, role)]
        for member in explained["profiles"]["default"]["endpoints"].values():
            assert member["scores"].get("bad-scorer", {"score": 0})["score"] == 0
    assert [(plugin, id) for plugin, _, id in world.heard] == [(kind.TYPE, "request-1")] * len(decisions)


def test_the_summary_says_which_plugin_failed_and_how_and_without_a_failure_nothing() -> None:
    BadScorer.does = fails
    assert World("bad-scorer").decide().summary()["plugin_failures"] == [
        {"plugin": "bad-scorer", "role": "scorer", "error": "KeyError: 'gpu'"}
    ]
    BadScorer.does = lambda rows: np.ones(len(rows))
    assert "plugin_failures" not in World("bad-scorer").decide().summary()


@pytest.mark.parametrize("type", ["bad-scorer", "bad-heir"])
def test_a_score_that_is_nan_costs_its_endpoint_and_every_decision_says_so(type: str) -> None:
    scores = np.array([np.nan, 0.2, 1.0])
    scores.flags.writeable = False  # as of a scorer that keeps them
    BadScorer.does = lambda rows: scores
    world = World(type, "max-score-picker")
    for _ in range(2):
        decision = world.decide()
        failure = PluginFailure(type, "scorer", "ValueError: the scores of 1 of 3 endpoints are NaN")
        assert (endpoint(decision), decision.failures) == ("a3", (failure,))


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.bool_])
def test_numbers_of_any_width_are_scores(kind: Any) -> None:
    BadScorer.does = lambda rows: np.array([0, 0, 1], kind)
    decision = World("bad-scorer", "max-score-picker").decide()
    assert (endpoint(decision), decision.failures) == ("a3", ())


def test_scores_that_a_scorer_keeps_for_other_endpoints_are_a_failure() -> None:
    kept = np.array([0.0, 0.5, 1.0])
    kept.flags.writeable = False
    BadScorer.does = lambda rows: kept
    world = World("bad-scorer", "queue-scorer", "max-score-picker")
    assert failed(world.decide()) == []
    decision = world.decide(request(subset=("10.0.0.1", "10.0.0.2")))
    assert (endpoint(decision), failed(decision)) == ("a1", [("bad-scorer", "scorer")])


def test_a_scorer_cannot_change_what_others_read() -> None:
    world = World("bad-scorer", "queue-scorer", "max-score-picker")
    column = world.view.columns.numbers(WAITING_QUEUE_SIZE.wire)

    def turns_around(rows: Rows) -> Floats:
        column.values[:] = column.values[::-1]
        return np.ones(len(rows))

    BadScorer.does = turns_around
    decision = world.decide()
    assert (endpoint(decision), failed(decision)) == ("a1", [("bad-scorer", "scorer")])


@pytest.mark.parametrize(
    ("kind", "does"), [(BadFilter, lambda rows: np.array([0], np.intp)), (BadPicker, lambda _: [0])]
)
def test_neither_filter_nor_picker_can_leave_the_subset_that_the_gateway_asks_for(kind: type[Any], does: Does) -> None:
    kind.does = does
    world = World(kind.TYPE, "queue-scorer", *(() if kind is BadPicker else ("max-score-picker",)))
    decisions = [world.decide(request(subset=("10.0.0.2", "10.0.0.3"))) for _ in range(40)]
    assert {endpoint(decision) for decision in decisions} == ({"a2", "a3"} if kind is BadPicker else {"a2"})


def test_a_filter_that_leaves_nothing_has_not_failed() -> None:
    BadFilter.does = lambda rows: rows[:0]
    decision = World("bad-filter").decide()
    assert isinstance(decision.outcome, Refusal)
    assert decision.failures == ()


def test_a_producer_that_fails_to_learn_who_served_costs_the_response_nothing() -> None:
    BadProducer.does, BadProducer.then = lambda *_: None, lambda *_: fails
    world = World("bad-producer", "queue-scorer", "max-score-picker", more=PRODUCER)
    (placement,) = world.decide().progress.placements
    placement("a2")
    assert world.heard == [("bad-producer", "KeyError", "request-1")]


PARSERS: dict[str, Does] = {
    "raises": fails,
    "recursion": lambda body: fails() if not body else (_ for _ in ()).throw(RecursionError()),
    "nothing": lambda body: None,
    "no text": lambda body: Content(model=7),  # type: ignore[arg-type]
    "a text for bytes": lambda body: Content(prompt="hello"),  # type: ignore[arg-type]
}
POST = [(":method", "POST"), (":path", "/v1/chat/completions"), ("x-request-id", "mine")]
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'


class WithParsers(PickerUnderTest):
    """A picker whose first parser is the bad one."""

    def __init__(self, view: View, *others: str) -> None:
        super().__init__(view)
        parsers = ("bad-parser", *others)
        document = HEADER + "".join(f"- type: {kind}\n" for kind in ("queue-scorer", *parsers))
        document += "requestHandler:\n  parsers:\n" + "".join(f"  - pluginRef: {parser}\n" for parser in parsers)
        self.handler.pipeline = build(load(document, REGISTRY), np.random.default_rng(1), lambda: 0.0)


@pytest.mark.parametrize("does", PARSERS.values(), ids=PARSERS)
def test_the_request_of_a_failing_parser_passes_unread(does: Does) -> None:
    BadParser.does = does
    view = pool("a1", "a2")
    report(view, {WAITING_QUEUE_SIZE: [3, 0]})
    world = WithParsers(view)
    _, answers = world.begin(headers(POST, modes=LEAN), body(BODY, end=True))
    assert destinations(answers) == "10.0.0.2:8000"
    (decision,) = world.ring.of_request("mine", 10)
    assert (failed(decision), decision.request.model) == ([("bad-parser", "parser")], "")


def test_a_parser_that_raises_the_body_has_it_kept_nowhere() -> None:
    def quotes(body: bytes) -> None:
        raise ValueError(body)

    BadParser.does = quotes
    world = WithParsers(pool("a1"))
    world.begin(headers(POST, modes=LEAN), body(BODY, end=True))
    (decision,) = world.ring.of_request("mine", 10)
    assert decision.failures == (PluginFailure("bad-parser", "parser", "ValueError"),)


@pytest.mark.parametrize(("others", "api"), [((), ""), (("good-parser",), "good")])
def test_where_a_parser_fails_to_say_whether_it_takes_a_request_the_next_one_may_take_it(
    others: tuple[str, ...], api: str
) -> None:
    BadParser.does, BadParser.accepts = lambda body: Content(), fails
    try:
        world = WithParsers(pool("a1"), *others)
        _, answers = world.begin(headers(POST, modes=LEAN), body(BODY, end=True))
    finally:
        BadParser.accepts = lambda _: True
    assert destinations(answers) == "10.0.0.1:8000"
    (decision,) = world.ring.newest(1)
    assert (failed(decision), decision.request.api) == ([("bad-parser", "parser")], api)


def test_no_request_gets_around_a_closed_pool_by_what_its_parser_fails_on() -> None:
    BadParser.does = fails
    view = pool("a1")
    view.upsert("pool.model.m", Model(name="m", model_name="m"))
    world = WithParsers(view)
    _, answers = world.begin(headers(POST, modes=LEAN), body(BODY, end=True))
    assert refused(answers).status == 400
    assert failed(world.ring.newest(1)[0]) == [("bad-parser", "parser")]
