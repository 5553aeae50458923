import numpy as np
import pytest

from services.picker.director import Prepared
from services.picker.pipeline import build
from services.picker.request import Refusal
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from shared.config import load
from shared.plugin import Registry
from tests.unit.services.picker.world import NOW, pool, request

REGISTRY = Registry.installed()
HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def test_the_default_configuration_is_described() -> None:
    state = build(load("", REGISTRY), np.random.default_rng(1), lambda: 0.0).state()
    assert state["origin"] == "built-in default"
    assert state["profiles"] == [
        "<Profile 'default': prefix-cache-affinity-filter → token-load-scorer·1 → max-score-picker>"
    ]
    assert state["saturation_detector"] == "utilization-detector"
    assert state["plugins"]["token-load-scorer"] == {"type": "token-load-scorer", "added_by_default": False}
    assert state["plugins"]["max-score-picker"]["added_by_default"]
    assert state["stale_metrics"] == {"after": 2.0, "policy": "saturated"}
    assert set(state["parsers"]) >= {"openai-parser", "passthrough-parser"}


def test_a_configuration_is_named_by_where_it_came_from() -> None:
    made = build(load(HEAD, REGISTRY, "pool.yaml"), np.random.default_rng(1), lambda: 0.0)
    assert made.state()["origin"] == "pool.yaml"
    assert repr(made).startswith("<Pipeline pool.yaml: <Director ")


def test_a_decision_names_the_revision_of_the_configuration_that_made_it() -> None:
    config = load(HEAD, REGISTRY)
    made = build(config, np.random.default_rng(1), lambda: 0.0)
    decisions = [
        made.director.decide(request(), pool("a1"), NOW),
        made.director.schedule(Prepared(request(), NOW, Refusal(status=400, message="no")), pool("a1"), NOW),
    ]
    assert [decision.explain()["configuration"] for decision in decisions] == [config.revision] * 2
    assert made.state()["revision"] == config.revision


def test_what_profiles_and_the_detector_read_of_servers_is_known_with_its_readers() -> None:
    made = build(load(HEAD + "plugins: [{type: queue-scorer}]", REGISTRY), np.random.default_rng(1), lambda: 0.0)
    assert made.reads == {
        WAITING_QUEUE_SIZE: ("queue-scorer", "utilization-detector"),
        KV_CACHE_USAGE: ("utilization-detector",),
    }


def test_what_was_learned_outlives_a_change_of_the_configuration() -> None:
    view = pool("a1")
    for _ in range(2):
        made = build(load("", REGISTRY), np.random.default_rng(1), lambda: 0.0)
        decision = made.director.decide(request(b"x" * 1024), view, NOW)
    assert decision.tokens == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_seed_makes_the_same_choices(seed: int) -> None:
    view = pool(*(f"a{number}" for number in range(50)))
    document = HEAD + "plugins:\n- type: random-picker\n"
    picks = [
        [made.director.decide(request(), view, NOW).picked for _ in range(20)]
        for made in (build(load(document, REGISTRY), np.random.default_rng(seed), lambda: 0.0) for _ in range(2))
    ]
    assert picks[0] == picks[1]
    assert len(set(picks[0])) > 5
