import json
from typing import Any

import numpy as np
import pytest

from pointsman.docs import DOCS
from services.picker.admin.schemas import DecisionInFull
from services.picker.decision import SHOWN, Decision
from services.picker.director import Director, Prepared
from services.picker.metadata import OBJECTIVE_HEADERS, REWRITE_HEADERS
from services.picker.pipeline import build
from services.picker.request import Refusal, Request, Route
from services.picker.state.view import View
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from shared.config import load
from shared.model import Criticality, Model, ModelRewrite, Objective, RewriteRule, Target
from shared.plugin import Registry
from tests.unit.services.picker.world import NOW, endpoint, pool, report, request

REGISTRY = Registry.installed()
WALL = 1_700_000_000.0


def director(document: str = "", *, seed: int = 3, **options: Any) -> Director:
    if document:
        document = f"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n{document}"
    random = np.random.default_rng(seed)
    return build(load(document, REGISTRY), random, lambda: WALL, **options).director


def decide(view: View, asked: Request | None = None, document: str = "", **options: Any) -> Decision:
    return director(document, **options).decide(asked or request(), view, NOW)


def route(decision: Decision) -> Route:
    assert isinstance(decision.outcome, Route), decision.outcome
    return decision.outcome


def refusal(decision: Decision) -> Refusal:
    assert isinstance(decision.outcome, Refusal), decision.outcome
    return decision.outcome


def busy() -> View:
    """A pool that is saturated."""
    view = pool("a1", "a2")
    report(view, {WAITING_QUEUE_SIZE: [9, 9], KV_CACHE_USAGE: [0.5, 0.5]})
    view.upsert("pool.objective.low", Objective(name="low", priority=-1))
    view.upsert("pool.objective.high", Objective(name="high", priority=5))
    return view


def objective(name: str) -> list[tuple[str, str]]:
    return [(OBJECTIVE_HEADERS[0], name)]


def test_a_decision_keeps_only_the_beginning_of_what_headers_say() -> None:
    large = "x" * 100_000
    made = decide(pool("a1"), request(headers=[(OBJECTIVE_HEADERS[0], large), (REWRITE_HEADERS[0], large)]))
    assert (made.objective, made.target_model) == (large[:SHOWN], large[:SHOWN])


def test_a_decision_is_reproduced_by_hand_from_its_explanation() -> None:
    """Queue weighs 2, KV cache 2, prefix 3.

    a1: queue 0 of 0..10 → 1.0; usage 0.5 → 0.5; no prefix → 0.      2·1.0 + 2·0.5 + 3·0    = 3.0
    a2: queue 5 of 0..10 → 0.5; usage 0.2 → 0.8; 3 of 4 blocks → 0.75. 2·0.5 + 2·0.8 + 3·0.75 = 4.85
    a3: queue 10 of 0..10 → 0;  usage 0.0 → 1.0; 1 of 4 blocks → 0.25. 2·0.0 + 2·1.0 + 3·0.25 = 2.75
    """
    view = pool("a1", "a2", "a3")
    report(view, {WAITING_QUEUE_SIZE: [0, 5, 10], KV_CACHE_USAGE: [0.5, 0.2, 0.0]}, ages=0.5)
    text = (DOCS / "profiles" / "weighted-sum.yaml").read_text(encoding="utf-8")
    made = director(text[text.index("plugins:") :])
    block = 256
    prompt = bytes(range(256)) * 4
    for row, blocks in ((1, 3), (2, 1)):
        learned = pool("a1", "a2", "a3")
        learned.prefixes = view.prefixes
        only = (learned.layout.authorities[row],)
        made.decide(request(prompt[: blocks * block], subset=only), learned, NOW)
    decision = made.decide(request(prompt), view, NOW)
    explained = json.loads(json.dumps(decision.explain(), allow_nan=False))
    DecisionInFull.model_validate(explained, extra="forbid")
    profile = explained["profiles"]["default"]
    weights = {"queue-scorer": 2, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 3}
    by_hand = {"a1": (1.0, 0.5, 0.0), "a2": (0.5, 0.8, 0.75), "a3": (0.0, 1.0, 0.25)}
    for name, scores in by_hand.items():
        shown = profile["endpoints"][name]
        assert {plugin: step["weight"] for plugin, step in shown["scores"].items()} == weights
        for plugin, score in zip(weights, scores, strict=True):
            assert shown["scores"][plugin]["score"] == pytest.approx(score)
            assert shown["scores"][plugin]["weighted"] == pytest.approx(weights[plugin] * score)
        assert shown["total"] == pytest.approx(sum(step["weighted"] for step in shown["scores"].values()))
    assert {name: shown["total"] for name, shown in profile["endpoints"].items()} == {
        "a1": 3.0,
        "a2": 4.85,
        "a3": 2.75,
    }
    assert profile["picked"] == ["a2"]
    assert explained["destinations"] == ["10.0.0.2:8000"]
    assert explained["charged_tokens"] == 64
    inputs = explained["inputs"]
    assert {name: read["value"] for name, read in inputs[WAITING_QUEUE_SIZE.wire].items()} == {
        "a1": 0,
        "a2": 5,
        "a3": 10,
    }
    assert {input["age"] for input in inputs[WAITING_QUEUE_SIZE.wire].values()} == {0.5}
    assert inputs["PrefixCacheMatchInfo/approx-prefix-cache-producer"]["a2"]["value"] == 3


def test_the_decision_tells_what_it_is_about() -> None:
    decision = decide(pool("a1"), request(b"x" * 40, id="mine"))
    assert (decision.request.id, decision.at, decision.monotonic, decision.target_model) == ("mine", WALL, NOW, "model")
    assert route(decision) == Route(destinations=("10.0.0.1:8000",), client_model="model")
    assert decision.tokens == 10
    assert 0 < decision.seconds < 10


def test_a_subset_is_honoured_with_its_ports_and_can_be_switched_off() -> None:
    view = pool(endpoint("a1", "fd00::1", 8000), endpoint("a2", "fd00::1", 8001))
    asked = request(subset=("[fd00::1]:8001",))
    for seed in range(10):
        assert route(decide(view, asked, seed=seed)).destinations == ("[fd00::1]:8001",)
    ignored = {route(decide(view, asked, honour_subset=False, seed=seed)).destinations for seed in range(20)}
    assert len(ignored) == 2


BUSY, ROOM, ONE_FREE = ([7, 7], [0.5, 0.5]), ([2, 7], [0.0, 0.0]), ([0, 90], [0.0, 0.0])


@pytest.mark.parametrize(
    ("name", "load", "subset", "later", "saturation", "shed"),
    [
        ("low", BUSY, None, 0, 1.4, True),
        ("high", BUSY, None, 0, None, False),
        ("", BUSY, None, 0, None, False),
        ("unknown", BUSY, None, 0, None, False),
        ("low", ROOM, None, 0, 0.9, False),
        ("low", ONE_FREE, None, 0, 0.75, False),  # one server alone doesn't fill the pool
        ("low", ONE_FREE, ("10.0.0.1",), 0, 0.0, False),  # saturation is that of the candidates
        ("low", BUSY, None, 60, 0.0, False),  # losing all metrics sheds nothing
    ],
)
def test_only_what_has_a_negative_priority_is_shed_where_the_candidates_have_no_room(
    name: str, load: Any, subset: Any, later: float, saturation: float | None, shed: bool
) -> None:
    view = busy()
    report(view, {WAITING_QUEUE_SIZE: load[0], KV_CACHE_USAGE: load[1]}, now=NOW + 0.1)
    decision = director().decide(request(headers=objective(name), subset=subset), view, NOW + 0.1 + later)
    assert decision.saturation == (None if saturation is None else pytest.approx(saturation))
    if not shed:
        assert route(decision).destinations
        return
    made = refusal(decision)
    assert (made.status, made.reason, made.retry_after) == (429, "rejected-saturated", 1)
    explained = decision.explain()
    assert explained["saturation"] == pytest.approx(1.4)
    assert explained["inputs"][WAITING_QUEUE_SIZE.wire]["a1"]["value"] == 7


def test_of_two_headers_for_the_objective_the_newer_name_wins() -> None:
    newer, older = OBJECTIVE_HEADERS
    decision = decide(busy(), request(headers=[(older, "low"), (newer, "high")]))
    assert (decision.objective, decision.priority) == ("high", 5)
    assert refusal(decide(busy(), request(headers=[(older, "low")]))).status == 429


def rewriting(view: View) -> View:
    targets = (Target(model="target"),)
    view.upsert("pool.rewrite.r", ModelRewrite(name="r", rules=(RewriteRule(models=("client",), targets=targets),)))
    return view


def test_a_rule_goes_before_the_rewrite_header_and_the_header_before_nothing() -> None:
    header = [(REWRITE_HEADERS[1], "wanted")]
    view = rewriting(pool("a1"))
    assert route(decide(view, request(model="client", headers=header))).target_model == "target"
    assert route(decide(view, request(model="other", headers=header))).target_model == "wanted"
    assert route(decide(view, request(model="", headers=header))).target_model is None
    assert route(decide(view, request(model="client", model_fixed=True, headers=header))).target_model is None


def test_a_body_without_a_model_needs_a_rewrite_that_supplies_one() -> None:
    without = request(model="", takes_model=True)
    view = rewriting(pool("a1"))
    missing = refusal(decide(view, without))
    assert (missing.status, missing.kind) == (400, "invalid_request_error")
    assert missing.message.startswith("model: model not found in request body")
    header = request(model="", takes_model=True, headers=[(REWRITE_HEADERS[0], "wanted")])
    assert route(decide(view, header)).target_model == "wanted"
    view.upsert("pool.rewrite.any", ModelRewrite(name="any", rules=(RewriteRule(targets=(Target(model="general"),)),)))
    supplied = decide(view, without)
    assert (route(supplied).target_model, supplied.rewrite, route(supplied).client_model) == ("general", "any", "")
    assert route(decide(view, request(model=""))).target_model is None, "a body that has no place for one"


PREFIX = "plugins:\n- type: prefix-cache-scorer\n- type: max-score-picker\n  parameters: {maxNumOfEndpoints: 3}\n"


@pytest.mark.parametrize(
    ("prefer", "conditional"),
    [
        (["if-available"], True),
        (["IF-Available"], True),
        (["respond-async, if-available; x=y , wait=5"], True),
        (["wait=5", "if-available=1"], True),
        (["if-available-now"], False),
        (["wait; if-available"], False),
        ([""], False),
        ([], False),
    ],
)
def test_who_prefers_only_a_cached_prompt_gets_a_412_where_nobody_has_it(prefer: list[str], conditional: bool) -> None:
    view, made, prompt = pool("a1", "a2"), director(PREFIX), b"x" * 2000
    asked = request(prompt, headers=[("Prefer", preference) for preference in prefer])
    first = made.decide(asked, view, NOW)
    if conditional:
        made_of_it = refusal(first)
        assert (made_of_it.status, made_of_it.retry_after) == (412, None)
        assert not len(view.prefixes), "what isn't routed isn't remembered"
    else:
        assert route(first).destinations


def test_who_prefers_only_a_cached_prompt_goes_to_those_who_have_it_and_no_fallback() -> None:
    view, made, prompt = pool("a1", "a2", "a3"), director(PREFIX), b"x" * 2000
    asked = request(prompt, headers=[("prefer", "if-available")])
    learned = route(made.decide(request(prompt, subset=("10.0.0.2",)), view, NOW)).destinations
    assert route(made.decide(asked, view, NOW)).destinations == learned == ("10.0.0.2:8000",)
    assert len(route(made.decide(request(prompt), view, NOW)).destinations) == 3
    without = director("plugins:\n- type: queue-scorer\n").decide(asked, view, NOW)
    assert refusal(without).status == 412, "without an index nothing is known to be cached"


def test_an_inference_model_gives_a_priority_to_who_names_no_objective() -> None:
    view = busy()
    view.upsert("pool.model.m", Model(name="m", model_name="cheap", criticality=Criticality.SHEDDABLE))
    assert refusal(decide(view, request(model="cheap"))).status == 429
    assert route(decide(view, request(model="cheap", headers=objective("high")))).destinations


def test_a_models_long_name_isnt_repeated_whole() -> None:
    assert len(refusal(decide(pool("a1"), request(model="x" * 9000), named_models_only=True)).message) < 400


def test_endpoints_may_change_between_two_decisions_and_the_explanation_of_the_first_stands() -> None:
    view, made = pool("a1", "a2"), director()
    report(view, {WAITING_QUEUE_SIZE: [0, 5]})
    first = made.decide(request(b"x" * 2000), view, NOW)
    explained = first.explain()
    view.delete("pool.endpoint.a1")
    view.upsert("pool.endpoint.a0", endpoint("a0", "10.0.0.9"))
    report(view, {WAITING_QUEUE_SIZE: [0, 7]}, now=NOW + 1)
    second = made.decide(request(b"x" * 2000), view, NOW + 1)
    assert set(second.explain()["profiles"]["default"]["endpoints"]) == {"a0", "a2"}
    assert first.explain() == explained
    assert set(explained["profiles"]["default"]["endpoints"]) == {"a1", "a2"}


def test_a_burst_of_requests_is_spread_by_the_load_in_flight() -> None:
    """No metric changes between requests a microsecond apart; the charges alone tell them apart."""
    view, made = pool("a1", "a2", "a3"), director("plugins:\n- type: active-request-scorer\n")
    for _ in range(30):
        decision = made.decide(request(), view, NOW)
        view.in_flight.charge(decision.layout.endpoints[decision.picked[0]].id, decision.tokens)
    assert view.in_flight.requests.tolist() == [10, 10, 10]


def test_the_clock_of_an_unreadable_request_is_the_walls() -> None:
    unreadable = Prepared(request(id="bad"), NOW, Refusal(status=400, message="no JSON"))
    made = director().schedule(unreadable, pool("a1"), NOW)
    assert (made.request.id, made.at, refusal(made).status) == ("bad", WALL, 400)
    assert made.explain()["refused"]["message"] == "no JSON"
