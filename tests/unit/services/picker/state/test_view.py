import numpy as np

from services.picker.state.view import View
from shared.attributes import WAITING_QUEUE_SIZE
from shared.model import Configuration, Model, ModelRewrite, Objective, Pool, RewriteRule, Target
from tests.unit.services.picker.world import NOW, endpoint, facts, frame, load, pool, report


def names(view: View) -> list[str]:
    return [endpoint.id for endpoint in view.layout.endpoints]


def test_a_reset_is_everything_that_there_is() -> None:
    view = pool("a1", "a2")
    view.upsert("pool.pool", Pool(name="pool"))
    view.upsert("pool.objective.low", Objective(name="low", priority=-1))
    view.reset({**facts(endpoint("a2"), endpoint("a3")), "pool.objective.high": Objective(name="high", priority=1)})
    assert names(view) == ["a2", "a3"]
    assert view.pool is None
    assert {name: objective.priority for name, objective in view.objectives.items()} == {"high": 1}


def test_a_burst_of_changes_costs_one_layout() -> None:
    view = pool("a1")
    before = view.layout.generation
    for number in range(2, 9):
        view.upsert(f"pool.endpoint.a{number}", endpoint(f"a{number}"))
    view.delete("pool.endpoint.a1")
    assert names(view) == [f"a{number}" for number in range(2, 9)]
    assert view.layout.generation == before + 1


def test_facts_that_didnt_change_make_no_new_layout() -> None:
    view = pool("a1", "a2")
    layout = view.layout
    view.reset(facts(endpoint("a1"), endpoint("a2")))
    view.upsert("pool.endpoint.a1", endpoint("a1"))
    view.upsert("pool.objective.low", Objective(name="low", priority=-1))
    assert view.layout is layout


def test_deleting_what_isnt_known_changes_nothing() -> None:
    view = pool("a1")
    view.upsert("pool.objective.a9", Objective(name="a9", priority=-1))
    view.delete("pool.endpoint.a9")
    assert "a9" in view.objectives
    assert names(view) == ["a1"]


def test_each_kind_of_fact_comes_and_goes() -> None:
    view = View()
    target = Target(model="x")
    view.upsert("p.pool", Pool(name="p"))
    view.upsert("p.objective.o", Objective(name="o", priority=3))
    view.upsert("p.rewrite.r", ModelRewrite(name="r", rules=(RewriteRule(models=("m",), targets=(target,)),)))
    view.upsert("p.model.n", Model(name="n", model_name="n", targets=(target,)))
    view.upsert("p.config", Configuration(text=""))
    assert view.pool is not None
    assert view.objectives["o"].priority == 3
    assert view.rewrites.target("m", "") == ("r", "x")
    assert view.rewrites.target("n", "") == ("n", "x")
    for key in ("p.pool", "p.objective.o", "p.rewrite.r", "p.model.n", "p.config"):
        view.delete(key)
    after: tuple[object, object] = (view.pool, view.objectives)
    assert after == (None, {})
    assert view.rewrites.target("m", "") is view.rewrites.target("n", "") is None


def test_rewrites_follow_their_last_versions_and_a_deleted_one_gives_way_to_the_general_one() -> None:
    def rewrite(name: str, target: str, *models: str) -> ModelRewrite:
        return ModelRewrite(name=name, rules=(RewriteRule(models=models, targets=(Target(model=target),)),))

    view = View()
    view.upsert("p.rewrite.any", rewrite("any", "general"))
    view.upsert("p.rewrite.one", rewrite("one", "exact", "m"))
    assert view.rewrites.target("m", "") == ("one", "exact")
    view.upsert("p.rewrite.one", rewrite("one", "other", "n"))
    assert view.rewrites.target("m", "") == ("any", "general")
    assert view.rewrites.target("n", "") == ("one", "other")
    view.delete("p.rewrite.one")
    view.delete("p.rewrite.never-was")
    assert view.rewrites.target("n", "") == ("any", "general")


def test_frames_and_loads_are_placed_by_the_layout_of_their_moment() -> None:
    view = pool("a1")
    view.upsert("pool.endpoint.a0", endpoint("a0"))
    view.apply_frame(frame(["a0", "a1"], {WAITING_QUEUE_SIZE: [1, 2]}), NOW, 0.0)
    view.upsert("pool.endpoint.a00", endpoint("a00"))
    view.apply_load(load("peer", {"a00": (1, 10), "a1": (2, 20)}), NOW)
    assert names(view) == ["a0", "a00", "a1"]
    assert np.nan_to_num(view.columns.numbers(WAITING_QUEUE_SIZE.wire).values, nan=-1).tolist() == [1, -1, 2]
    assert view.in_flight.requests.tolist() == [0, 1, 2]


def test_the_state_says_everything_of_every_endpoint() -> None:
    view = pool(endpoint("a1", engine="vllm"))
    report(view, {WAITING_QUEUE_SIZE: [4]}, ages=0.5)
    view.apply_load(load("peer", {"a1": (2, 20)}), NOW)
    view.in_flight.charge("a1", 5)
    view.prefixes.add("a1", [1, 2, 3], 100)
    assert list(view.state(NOW)) == [
        {
            "id": "a1",
            "authority": "10.0.0.1:8000",
            "labels": {"engine": "vllm"},
            "unhealthy": None,
            "draining": False,
            "slow_start_weight": 1.0,
            "attributes": {WAITING_QUEUE_SIZE.wire: {"value": 4.0, "age": 0.5}},
            "inflight": {"requests": 3, "tokens": 25, "own_requests": 1, "own_tokens": 5},
            "prefix_blocks": 3,
        }
    ]
    in_flight, prefixes = "<InFlight 1 own requests, 1 peers>", "<LruPrefixIndex 3 blocks, 1 endpoints>"
    assert repr(view) == f"<View 1 endpoints, {in_flight}, {prefixes}>"


def test_endpoints_may_change_while_the_state_is_told() -> None:
    """One by one, because thousands take long."""
    view = pool("a1", "a2", "a3")
    state = view.state(NOW)
    first = next(state)
    view.delete("pool.endpoint.a1")
    view.delete("pool.endpoint.a2")
    view.in_flight.charge("a3", 5)
    (last,) = state
    assert (first["id"], last["id"], last["inflight"]["own_requests"]) == ("a1", "a3", 1)
