from collections import Counter

import pytest

from services.picker.state.rewrites import Rewrites, split
from shared.model import Criticality, Model, ModelRewrite, RewriteRule, Target


def rule(*targets: str | tuple[str, int], models: tuple[str, ...] = ()) -> RewriteRule:
    parts = [(one, None) if isinstance(one, str) else one for one in targets]
    return RewriteRule(models=models, targets=tuple(Target(model=name, weight=weight) for name, weight in parts))


def rewrite(name: str, *rules: RewriteRule, created: float = 0.0) -> ModelRewrite:
    return ModelRewrite(name=name, created=created, rules=rules)


def test_without_a_rule_nothing_is_rewritten() -> None:
    assert Rewrites().target("m", "id") is None
    assert Rewrites([rewrite("r", rule("x", models=("other",)))]).target("m", "id") is None


def test_a_rule_that_names_the_model_goes_before_one_for_every_model() -> None:
    rewrites = Rewrites([rewrite("any", rule("general"), created=1), rewrite("one", rule("exact", models=("m", "n")))])
    assert rewrites.target("m", "id") == ("one", "exact")
    assert rewrites.target("n", "id") == ("one", "exact")
    assert rewrites.target("other", "id") == ("any", "general")
    assert repr(rewrites) == "<Rewrites 2 models, any>"


@pytest.mark.parametrize("models", [("m",), ()])
def test_among_equals_the_oldest_resource_wins_whatever_the_order(models: tuple[str, ...]) -> None:
    old, young = (rewrite(name, rule(name, models=models), created=at) for name, at in (("old", 1), ("young", 2)))
    assert Rewrites([young, old]).target("m", "id") == Rewrites([old, young]).target("m", "id") == ("old", "old")


def test_in_one_resource_the_first_rule_wins() -> None:
    assert Rewrites([rewrite("r", rule("a", models=("m",)), rule("b", models=("m",)))]).target("m", "id") == ("r", "a")


def test_a_rule_without_targets_is_no_rule() -> None:
    rewrites = Rewrites([rewrite("r", RewriteRule(models=("m",), targets=()), rule("x"))])
    assert rewrites.target("m", "id") == ("r", "x")


def test_a_request_id_stays_with_its_target() -> None:
    targets = rule(("a", 1), ("b", 1)).targets
    assert len({split(targets, "the same") for _ in range(20)}) == 1


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ((70, 30), (0.7, 0.3)),
        ((1, 1, 2), (0.25, 0.25, 0.5)),
        ((None, None), (0.5, 0.5)),
        ((0, 0), (0.5, 0.5)),
        ((0, 5), (0.0, 1.0)),
        ((999_999, 1_000_000), (0.5, 0.5)),
    ],
)
def test_requests_are_split_by_weight(weights: tuple[int | None, ...], shares: tuple[float, ...]) -> None:
    """20 000 ids; five standard deviations."""
    targets = tuple(Target(model=str(at), weight=weight) for at, weight in enumerate(weights))
    count = 20_000
    counts = Counter(split(targets, f"request-{number}") for number in range(count))
    for at, share in enumerate(shares):
        deviation = (count * share * (1 - share)) ** 0.5
        assert abs(counts[str(at)] - count * share) <= 5 * deviation


def test_an_inference_model_splits_its_name_after_every_rewrite_that_names_it() -> None:
    model = Model(name="crd", model_name="m", targets=(Target(model="m-v2"),), created=5)
    assert Rewrites(models=[model]).target("m", "id") == ("crd", "m-v2")
    assert Rewrites([rewrite("any", rule("x"))], [model]).target("m", "id") == ("crd", "m-v2")
    assert Rewrites([rewrite("one", rule("x", models=("m",)), created=9)], [model]).target("m", "id") == ("one", "x")


def test_an_inference_model_without_targets_rewrites_nothing() -> None:
    assert Rewrites(models=[Model(name="crd", model_name="m")]).target("m", "id") is None


def test_of_two_inference_models_for_one_name_the_older_one_holds() -> None:
    old = Model(name="old", model_name="m", criticality=Criticality.SHEDDABLE, created=1)
    young = Model(name="young", model_name="m", targets=(Target(model="x"),), created=2)
    rewrites = Rewrites(models=[young, old])
    assert rewrites.target("m", "id") is None
    assert rewrites.priority("m") == -1


@pytest.mark.parametrize(
    ("criticality", "priority"), [(Criticality.CRITICAL, 1), (Criticality.STANDARD, 0), (Criticality.SHEDDABLE, -1)]
)
def test_criticality_is_a_priority(criticality: Criticality, priority: int) -> None:
    rewrites = Rewrites(models=[Model(name="crd", model_name="m", criticality=criticality)])
    assert (rewrites.priority("m"), rewrites.priority("other")) == (priority, 0)
