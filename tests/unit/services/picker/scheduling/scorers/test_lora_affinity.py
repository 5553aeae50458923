import pytest

from services.picker.scheduling.scorers.lora_affinity import LoraAffinityScorer
from shared.attributes import ACTIVE_MODELS, MAX_ACTIVE_MODELS, WAITING_MODELS
from tests.unit.services.picker.world import cycle, pool, report

ROWS = [  # active, waiting, limit -> score of model "a"
    (["a"], [], 2, 1.0),
    (["b"], [], 2, 0.8),
    (["b", "c"], ["a"], 2, 0.6),
    (["b", "c"], [], 2, 0.0),
    (["b"], ["a"], 4, 0.8),
    (["a", "b", "c"], [], 2, 1.0),
    (["b"], ["c"], 2, 0.0),
    ([], [], 0, 0.0),
]


def scores(ages: float = 0.0, policy: str = "saturated", model: str = "a") -> list[float]:
    view = pool(*(f"e{number}" for number in range(len(ROWS))))
    active, waiting, limit, _ = zip(*ROWS, strict=True)
    report(
        view,
        {ACTIVE_MODELS: active, WAITING_MODELS: waiting, MAX_ACTIVE_MODELS: limit},
        [0.0] * 2 + [ages] * (len(ROWS) - 2),
    )
    run = cycle(view, policy=policy, model=model)
    made: list[float] = LoraAffinityScorer("lora").score(run, view.layout.all_rows).tolist()
    return made


def test_loaded_before_room_before_waited_for_before_no_room() -> None:
    assert scores() == [score for *_, score in ROWS]


def test_a_base_model_is_an_adapter_that_is_never_loaded() -> None:
    assert scores(model="base") == [0.8, 0.8, 0, 0, 0.8, 0, 0, 0]


@pytest.mark.parametrize(
    ("policy", "rest"),
    [("saturated", [0.0] * 6), ("ignore", [0.9] * 6), ("lastKnown", [score for *_, score in ROWS[2:]])],
)
def test_adapters_that_were_seen_long_ago_count_as_the_policy_says(policy: str, rest: list[float]) -> None:
    assert scores(ages=9.0, policy=policy) == [1.0, 0.8, *rest]


def test_an_endpoint_that_reports_no_adapters_has_room_for_none() -> None:
    view = pool("a1", "a2")
    assert LoraAffinityScorer("lora").score(cycle(view), view.layout.all_rows).tolist() == [0, 0]
