"""The decision tree of GIE 0.1 to 0.5: its filters one by one, and the tree as the documented profile has it."""

from typing import Any

import numpy as np
import pytest

from pointsman.docs import DOCS
from services.picker.pipeline import build
from services.picker.request import Refusal
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.filters.least import LeastKvCacheFilter, LeastQueueFilter
from services.picker.scheduling.filters.lora_affinity import LoraAffinityFilter
from services.picker.scheduling.filters.low_queue import LowQueueFilter
from services.picker.scheduling.filters.priority import PriorityFilter
from services.picker.state.view import View
from shared.attributes import ACTIVE_MODELS, KV_CACHE_USAGE, MAX_ACTIVE_MODELS, WAITING_MODELS, WAITING_QUEUE_SIZE
from shared.config import Invalid, load
from shared.model import Objective
from shared.plugin import Registry
from tests.unit.services.picker.scheduling.plugins import over, plugin, read
from tests.unit.services.picker.world import NOW, cycle, pool, report, request

REGISTRY = Registry.installed()
HEADER = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
PROFILE = (DOCS / "profiles" / "decision-tree.yaml").read_text(encoding="utf-8")
OLD = 9.0
"""Seconds: stale."""


def kept(kind: type[Any], on: Cycle, raw: dict[str, Any] | None = None) -> list[int]:
    rows: list[int] = plugin(kind, raw or {}).filter(on, on.candidates).tolist()
    return rows


@pytest.mark.parametrize(
    ("values", "ages", "policy", "expected"),
    [
        ([], 0.0, "saturated", []),
        ([200], 0.0, "saturated", []),
        ([127, 128, 129], 0.0, "saturated", [0, 1]),
        ([0, None, 3], 0.0, "saturated", [0, 2]),
        ([0, None, 3], 0.0, "ignore", [0, 1, 2]),
        ([0, 0, 300], [0, OLD, 0], "saturated", [0]),
        ([0, 300, 300], [0, OLD, 0], "ignore", [0, 1]),
        ([0, 300, 0], [0, OLD, OLD], "lastKnown", [0, 2]),
        ([0, 300], OLD, "saturated", [0]),  # all stale: the last values count
        ([None, None], 0.0, "saturated", [0, 1]),
    ],
)
def test_low_queues(values: list[float | None], ages: Any, policy: str, expected: list[int]) -> None:
    assert kept(LowQueueFilter, over(WAITING_QUEUE_SIZE, values, ages, policy)) == expected


@pytest.mark.parametrize(
    ("values", "ages", "policy", "expected"),
    [
        ([], 0.0, "saturated", []),
        ([7], 0.0, "saturated", [0]),
        ([4, 4, 4], 0.0, "saturated", [0, 1, 2]),
        ([0, 1, 2, 6], 0.0, "saturated", [0, 1]),  # 0 + ⌊6 / 4⌋ = 1
        ([0, 1, 2], 0.0, "saturated", [0]),  # 0 + ⌊2 / 3⌋ = 0
        ([10, 12, 13, 20, 5], 0.0, "saturated", [4]),  # 5 + ⌊15 / 5⌋ = 8
        ([0, None, 4], 0.0, "saturated", [0]),
        ([0, None, 4], 0.0, "ignore", [0, 1]),
        ([0, 3, 3], [OLD, 0, 0], "saturated", [1, 2]),
        ([9, 3, 3], [OLD, 0, 0], "ignore", [0, 1, 2]),
        ([0, 3, 3], [OLD, 0, 0], "lastKnown", [0]),
        ([2, 3, 9], OLD, "saturated", [0, 1]),  # all stale: 2 + ⌊7 / 3⌋ = 4
        ([None, None], 0.0, "saturated", [0, 1]),
    ],
)
def test_least_queues(values: list[float | None], ages: Any, policy: str, expected: list[int]) -> None:
    assert kept(LeastQueueFilter, over(WAITING_QUEUE_SIZE, values, ages, policy)) == expected


@pytest.mark.parametrize(
    ("values", "ages", "policy", "expected"),
    [
        ([], 0.0, "saturated", []),
        ([0.9], 0.0, "saturated", [0]),
        ([0.5, 0.5], 0.0, "saturated", [0, 1]),
        ([0.0, 0.25, 0.26, 1.0], 0.0, "saturated", [0, 1]),  # 0 + 1 / 4
        ([0.5, 0.625, 0.75], 0.0, "saturated", [0]),  # 0.5 + 0.25 / 3 = 0.583
        ([0.5, None], 0.0, "saturated", [0]),
        ([0.1, 0.5, 0.5], [OLD, 0, 0], "saturated", [1, 2]),
    ],
)
def test_least_kv_caches(values: list[float | None], ages: Any, policy: str, expected: list[int]) -> None:
    assert kept(LeastKvCacheFilter, over(KV_CACHE_USAGE, values, ages, policy)) == expected


def lora(
    active: list[Any], waiting: list[Any], most: list[float | None], ages: Any = 0.0, policy: str = "saturated"
) -> Cycle:
    """Endpoints with these adapters; the request wants `ad`."""
    view = pool(*(f"a{number}" for number in range(len(active))))
    report(view, {ACTIVE_MODELS: active, WAITING_MODELS: waiting, MAX_ACTIVE_MODELS: most}, ages)
    return cycle(view, model="ad", policy=policy)


NONE: list[str] = []


@pytest.mark.parametrize(
    ("on", "threshold", "expected"),
    [
        (lora([], [], []), 1.0, []),
        (lora([["ad"]], [NONE], [1]), 1.0, [0]),
        (lora([["ad"], ["x"]], [NONE, NONE], [2, 2]), 1.0, [0]),
        (lora([["ad"], ["x"]], [NONE, NONE], [2, 2]), 0.0, [1]),
        (lora([["x"], ["x"]], [["ad"], NONE], [1, 2]), 1.0, [0]),  # one that waits for it has affinity
        (lora([["x"], ["x"]], [["y"], NONE], [2, 2]), 1.0, [1]),  # 1 + 1 = 2: no room
        (lora([["x"], ["ad"]], [NONE, NONE], [1, 1]), 0.0, [1]),  # the one group that there is
        (lora([["x"], ["y"]], [NONE, NONE], [1, 1]), 1.0, []),
        (lora([["ad"], ["ad"]], [NONE, NONE], [1, 1], [OLD, 0]), 1.0, [1]),
        (lora([["x"], ["ad"]], [NONE, NONE], [1, 1], [OLD, 0], "ignore"), 1.0, [0, 1]),
        (lora([["ad"], ["x"]], [NONE, NONE], [1, 1], [OLD, 0], "lastKnown"), 1.0, [0]),
        (lora([["ad"], ["x"]], [NONE, NONE], [1, 1], OLD), 1.0, [0]),  # all stale: the last values count
        (lora([None, None], [None, None], [None, None]), 1.0, []),
    ],
)
def test_adapters(on: Cycle, threshold: float, expected: list[int]) -> None:
    assert kept(LoraAffinityFilter, on, {"threshold": threshold}) == expected


@pytest.mark.parametrize(("priority", "expected"), [(-1, []), (0, []), (1, [0, 1]), (7, [0, 1])])
def test_priorities(priority: int, expected: list[int]) -> None:
    assert kept(PriorityFilter, cycle(pool("a0", "a1"), priority=priority)) == expected


# The tree


def decided(view: View, priority: int, seed: int = 3, document: str = PROFILE) -> list[int] | int:
    """The rows that the tree leaves, or the status of the refusal."""
    view.upsert("pool.objective.o", Objective(name="o", priority=priority))
    director = build(load(document, REGISTRY), np.random.default_rng(seed), lambda: 0.0).director
    asked = request(model="ad", headers=[("x-llm-d-inference-objective", "o")])
    decision = director.decide(asked, view, NOW)
    if isinstance(decision.outcome, Refusal):
        return decision.outcome.status
    assert set(decision.picked) <= set(decision.runs["default"].rows.tolist())
    return sorted(decision.runs["default"].rows.tolist())


def state(queues: list[float], usage: list[float], active: str = "") -> View:
    """Endpoints with room for two adapters; `active` says which have the requested one: `-+-`."""
    view = pool(*(f"a{number}" for number in range(len(queues))))
    adapters = [["ad"] if letter == "+" else ["x", "y"] for letter in active or "-" * len(queues)]
    report(
        view,
        {
            WAITING_QUEUE_SIZE: queues,
            KV_CACHE_USAGE: usage,
            ACTIVE_MODELS: adapters,
            WAITING_MODELS: [[] for _ in queues],
            MAX_ACTIVE_MODELS: [2] * len(queues),
        },
    )
    return view


CRITICAL, STANDARD, SHEDDABLE = 1, 0, -1


@pytest.mark.parametrize(
    ("view", "critical", "standard"),
    [
        # one endpoint
        (state([0], [0.0]), [0], [0]),
        (state([200], [0.0]), [0], 429),
        # all alike
        (state([3, 3], [0.5, 0.5]), [0, 1], [0, 1]),
        # critical: affinity before queues; standard: queues before affinity
        (state([4, 0], [0.5, 0.5], "+-"), [0], [1]),
        (state([4, 0, 0], [0.5, 0.75, 0.25], "+--"), [0], [2]),
        # no queue is short enough for standard, some are for critical
        (state([6, 100], [0.5, 0.5], "-+"), [1], 429),
        # a full KV cache excludes an endpoint for standard only
        (state([0, 5], [0.9, 0.5]), [0], [1]),
        # every queue exceeds the critical threshold: queues before affinity
        (state([129, 200], [0.5, 0.5], "-+"), [0], 429),
        # a queue at the threshold is low
        (state([128, 200], [0.5, 0.5], "-+"), [0], 429),
        # near the least queue: 0 + ⌊4 / 4⌋ = 1; of these near the least usage: 0.25 + 0.5 / 2
        (state([0, 1, 2, 4], [0.75, 0.25, 0.0, 0.0]), [1], [1]),
    ],
)
def test_the_tree_as_the_reference_draws_it(view: View, critical: list[int] | int, standard: list[int] | int) -> None:
    assert decided(view, CRITICAL) == critical
    assert decided(view, STANDARD) == standard
    assert decided(view, SHEDDABLE) == standard


def chart(queues: list[float], usage: list[float], active: str, *, critical: bool) -> list[int] | int:
    """The reference's flow chart, endpoint by endpoint, without the one time in a thousand."""
    every = list(range(len(queues)))

    def near(rows: list[int], values: list[float], whole: bool) -> list[int]:
        low, high = min(values[row] for row in rows), max(values[row] for row in rows)
        step = (high - low) // len(rows) if whole else (high - low) / len(rows)
        return [row for row in rows if values[row] <= low + step]

    def affinity(rows: list[int]) -> list[int]:
        return [row for row in rows if active[row] == "+"] or rows  # the others have no room

    if critical:
        low = [row for row in every if queues[row] <= 128]
        if low:
            return near(near(affinity(low), queues, True), usage, False)
        return near(affinity(near(every, queues, True)), usage, False)
    room = [row for row in every if queues[row] <= 5 and usage[row] <= 0.8]
    return near(affinity(near(room, queues, True)), usage, False) if room else 429


@pytest.mark.parametrize("seed", range(40))
def test_the_tree_decides_as_the_flow_chart_on_any_pool(seed: int) -> None:
    random = np.random.default_rng(seed)
    size = int(random.integers(1, 9))
    queues = random.choice([0.0, 1.0, 4.0, 5.0, 6.0, 60.0, 128.0, 129.0, 500.0], size).tolist()
    usage = random.choice([0.0, 0.125, 0.5, 0.75, 0.875, 1.0], size).tolist()
    active = "".join(random.choice(["+", "-"], size).tolist())
    view = state(queues, usage, active)
    assert decided(view, CRITICAL) == chart(queues, usage, active, critical=True)
    assert decided(view, STANDARD) == chart(queues, usage, active, critical=False)


# Documents


def errors(parameters: str, more: str = "") -> list[str]:
    with pytest.raises(Invalid) as caught:
        load(
            f"{HEADER}plugins:\n- {{name: tree, type: decision-tree-filter, parameters: {parameters}}}\n{more}",
            REGISTRY,
        )
    return caught.value.lines()


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ("{}", "plugins[0].parameters.current: required, and missing"),
        ("{current: {}}", "plugins[0].parameters.current: one of pluginRef and decisionTree is required"),
        ("{current: {pluginRef: nobody}}", "plugins[0].parameters.current.pluginRef: 'nobody' is no plugin's name"),
        (
            "{current: {pluginRef: q}, nextOnSuccess: {decisionTree: {current: {pluginRef: p}}}}",
            "plugins[0].parameters.nextOnSuccess.decisionTree.current.pluginRef: "
            "'p' is of type max-score-picker, which is no filter",
        ),
        ("{current: {pluginRef: tree}}", "plugins[0]: plugins call each other: tree → tree"),
    ],
)
def test_what_a_tree_must_not_say(parameters: str, problem: str) -> None:
    assert errors(parameters, "- {name: q, type: low-queue-filter}\n- {name: p, type: max-score-picker}") == [problem]


def test_a_tree_alone_is_the_profile_and_its_filters_are_not_run_again() -> None:
    config = load(
        HEADER + "plugins:\n- {name: q, type: low-queue-filter, parameters: {threshold: 0}}\n"
        "- {type: decision-tree-filter, parameters: {current: {pluginRef: q}, nextOnFailure: {pluginRef: k}}}\n"
        "- {name: k, type: least-kv-cache-filter}",
        REGISTRY,
    )
    assert [member.plugin.name for member in config.profiles[0].members] == ["decision-tree-filter", "max-score-picker"]


def test_a_producer_runs_that_only_a_filter_in_the_tree_reads() -> None:
    document = (
        HEADER + "plugins:\n- {name: busy, type: utilization-filter, parameters: {conditions: "
        "[{metric: active-requests, maxValue: 5}]}}\n- {type: decision-tree-filter, parameters: {current: "
        "{pluginRef: busy}}}"
    )
    assert load(document, REGISTRY).producers == ("inflight-load-producer",)


def test_a_filter_that_fails_in_a_tree_lets_all_pass_and_is_named() -> None:
    class Broken(LowQueueFilter):
        TYPE = "broken-filter"

        def filter(self, cycle: Cycle, rows: Any) -> Any:
            raise KeyError("gpu")

    document = HEADER + (
        "plugins:\n- type: broken-filter\n- type: least-queue-filter\n- type: decision-tree-filter\n  parameters:\n"
        "    {current: {pluginRef: broken-filter}, nextOnSuccess: {pluginRef: least-queue-filter}}"
    )
    view = state([0, 9], [0.0, 0.0])
    director = build(load(document, Registry([*REGISTRY, Broken])), np.random.default_rng(1), lambda: 0.0).director
    decision = director.decide(request(), view, NOW)
    assert decision.picked == (0,)
    assert [(failure.plugin, failure.role) for failure in decision.failures] == [("broken-filter", "filter")]


def test_thresholds_have_bounds() -> None:
    assert read(LowQueueFilter.Parameters, {"threshold": -1})[1] == ["at.threshold: -1 is negative"]
    assert read(LoraAffinityFilter.Parameters, {"threshold": 1.5})[1] == ["at.threshold: 1.5 is above 1"]
