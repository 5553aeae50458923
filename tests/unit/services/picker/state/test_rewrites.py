from collections import Counter

import pytest

from services.picker.settings.limits import DEFAULT_VIEW_LIMITS
from services.picker.state.rewrites import Rewrites, split
from shared.model import Criticality, Model, ModelRewrite, RewriteRule, Target


def rule(*targets: str | tuple[str, int], models: tuple[str, ...] = ()) -> RewriteRule:
    parts = [(target, None) if isinstance(target, str) else target for target in targets]
    return RewriteRule(models=models, targets=tuple(Target(model=name, weight=weight) for name, weight in parts))


def rewrite(name: str, *rules: RewriteRule, created: float = 0.0) -> ModelRewrite:
    return ModelRewrite(name=name, created=created, rules=rules)


ANY, EXACT = rewrite("any", rule("general"), created=1), rewrite("one", rule("exact", models=("m", "n")))
OLD, YOUNG = (rewrite(name, rule(name, models=("m",)), created=at) for name, at in (("old", 1), ("young", 2)))
OLD_ANY, YOUNG_ANY = (rewrite(name, rule(name), created=at) for name, at in (("old", 1), ("young", 2)))
SPLITS = Model(name="crd", model_name="m", targets=(Target(model="m-v2"),), created=5)
PLAIN = Model(name="old", model_name="m", criticality=Criticality.SHEDDABLE, created=1)


@pytest.mark.parametrize(
    ("rewrites", "models", "asked", "target"),
    [
        ([], [], "m", None),
        ([rewrite("r", rule("x", models=("other",)))], [], "m", None),
        # a rule that names the model goes before one for every model
        ([ANY, EXACT], [], "m", ("one", "exact")),
        ([ANY, EXACT], [], "n", ("one", "exact")),
        ([ANY, EXACT], [], "other", ("any", "general")),
        # among equals the oldest resource wins, and its first rule
        ([YOUNG, OLD], [], "m", ("old", "old")),
        ([OLD, YOUNG], [], "m", ("old", "old")),
        ([YOUNG_ANY, OLD_ANY], [], "m", ("old", "old")),
        ([OLD_ANY, YOUNG_ANY], [], "m", ("old", "old")),
        ([rewrite("r", rule("a", models=("m",)), rule("b", models=("m",)))], [], "m", ("r", "a")),
        # one without targets is none
        ([rewrite("r", RewriteRule(models=("m",), targets=()), rule("x"))], [], "m", ("r", "x")),
        # an InferenceModel comes after every rewrite that names it; the oldest holds
        ([], [SPLITS], "m", ("crd", "m-v2")),
        ([ANY], [SPLITS], "m", ("crd", "m-v2")),
        ([rewrite("one", rule("x", models=("m",)), created=9)], [SPLITS], "m", ("one", "x")),
        ([], [SPLITS, PLAIN], "m", None),
    ],
)
def test_the_target_of_a_model(
    rewrites: list[ModelRewrite], models: list[Model], asked: str, target: tuple[str, str] | None
) -> None:
    assert Rewrites(rewrites, models).target(asked, "id") == target


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


@pytest.mark.parametrize(
    ("criticality", "priority"), [(Criticality.CRITICAL, 1), (Criticality.STANDARD, 0), (Criticality.SHEDDABLE, -1)]
)
def test_criticality_is_a_priority(criticality: Criticality, priority: int) -> None:
    rewrites = Rewrites(models=[Model(name="crd", model_name="m", criticality=criticality)])
    assert (rewrites.priority("m"), rewrites.priority("other")) == (priority, 0)
    assert Rewrites(models=[SPLITS, PLAIN]).priority("m") == -1, "the oldest holds"


def test_of_more_models_than_are_looked_at_the_oldest_resources_count() -> None:
    many = rewrite("many", rule("x", models=tuple(map(str, range(DEFAULT_VIEW_LIMITS.model_names - 10)))), created=2)
    rewrites = Rewrites([rewrite("more", rule("y", models=("m",) * 20), created=3), many, OLD], [PLAIN] * 20)
    assert rewrites.target("m", "id") == ("old", "old")
    assert rewrites.target("7", "id") == ("many", "x")
    assert rewrites.note() == "1 rules and models have no effect: there are too many"
    assert rewrites.closed
    assert not rewrites.mentions("other")


def test_of_more_models_than_are_looked_at_the_youngest_arent_served() -> None:
    most = DEFAULT_VIEW_LIMITS.model_names
    models = [Model(name=f"{number:05}", model_name=f"m{number}") for number in range(most + 1)]
    rewrites = Rewrites(models=models)
    assert rewrites.names("m0")
    assert rewrites.closed
    assert not rewrites.names(f"m{DEFAULT_VIEW_LIMITS.model_names}")
