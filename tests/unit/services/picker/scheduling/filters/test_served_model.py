"""Mixed pools: a request goes where its model is."""

from typing import Any

import numpy as np
import pytest

from services.picker.pipeline import build
from services.picker.request import Refusal, Route
from services.picker.scheduling.filters.served_model import ServedModelFilter, ServedModelParameters
from services.picker.state.view import View
from shared.attributes import SERVED_MODELS
from shared.config import Invalid, load
from shared.plugin import Registry
from tests.unit.services.picker.world import NOW, cycle, endpoint, pool, report, request


def mixed(*lists: tuple[str, ...] | None, age: float = 0.0) -> View:
    """Endpoints e0, e1, …, each with the models that it reports."""
    view = pool(*(endpoint(f"e{number}") for number in range(len(lists))))
    report(view, {SERVED_MODELS: lists}, ages=age)
    return view


def kept(view: View, model: str, **parameters: Any) -> list[int]:
    made = ServedModelFilter("filter", ServedModelParameters(**parameters))
    rows: list[int] = made.filter(cycle(view, model=model), view.layout.all_rows).tolist()
    return rows


@pytest.mark.parametrize(
    ("lists", "model", "parameters", "expected"),
    [
        ((("llama", "llama-sql"), ("qwen",), ("llama",)), "llama", {}, [0, 2]),
        ((("llama", "llama-sql"), ("qwen",), ("llama",)), "llama-sql", {}, [0]),
        ((("org/llama",), ("llama-sql",)), "llama", {}, []),
        ((("llama",), None, ()), "", {}, [0, 1, 2]),
        # of whom nobody knows
        ((("llama",), ("qwen",), None), "llama", {}, [0]),
        ((("llama",), ("qwen",), None), "nobodys", {}, [2]),
        ((("llama",), ("qwen",), None), "llama", {"on_missing": "Pass"}, [0, 2]),
        ((("llama",), ("qwen",), None), "nobodys", {"on_missing": "Pass"}, [2]),
        ((("llama",), ("qwen",), None), "llama", {"on_missing": "Fail"}, [0]),
        ((("llama",), ("qwen",), None), "nobodys", {"on_missing": "Fail"}, []),
        # nobody serves it, and all are known
        ((("llama",), ()), "nobodys", {}, []),
        ((("llama",), ()), "nobodys", {"on_missing": "Pass"}, []),
        ((("llama",), ()), "nobodys", {"fallback_on_empty": True}, [0, 1]),
        ((None, None), "llama", {}, [0, 1]),
    ],
)
def test_the_endpoints_that_serve_the_model_stay(
    lists: tuple[Any, ...], model: str, parameters: dict[str, Any], expected: list[int]
) -> None:
    assert kept(mixed(*lists), model, **parameters) == expected


def test_the_model_after_rewriting_counts_not_the_one_that_was_asked_for() -> None:
    view = mixed(("model",), ("rewritten",))
    asked = cycle(view, model="rewritten")
    assert asked.request.content.model == "model"
    assert ServedModelFilter("filter").filter(asked, view.layout.all_rows).tolist() == [1]


def test_the_age_of_a_list_does_not_matter() -> None:
    assert kept(mixed(("llama",), ("qwen",), age=3600.0), "llama") == [0]


def test_only_rows_that_were_given_are_kept() -> None:
    view = mixed(("llama",), ("llama",), ("llama",))
    made = ServedModelFilter("filter")
    assert made.filter(cycle(view, model="llama"), view.layout.all_rows[[2, 0]]).tolist() == [2, 0]


def test_a_list_that_changes_takes_the_endpoint_along() -> None:
    view = mixed(("llama",), ("llama", "sql"))
    assert kept(view, "sql") == [1]
    report(view, {SERVED_MODELS: [("llama", "sql"), ("llama",)]}, now=NOW + 1)
    assert kept(view, "sql") == [0]


def test_the_explanation_shows_who_serves_the_model_and_of_whom_nobody_knows() -> None:
    view = mixed(("llama",), ("qwen",), None)
    made = cycle(view, model="llama")
    ServedModelFilter("filter").filter(made, view.layout.all_rows)
    np.testing.assert_array_equal(made.samples["ServesModel"].values, [1.0, 0.0, np.nan])


HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: served-model-filter\n"


def test_without_somebody_who_asks_the_servers_it_is_an_error_that_says_what_to_add() -> None:
    with pytest.raises(Invalid) as caught:
        load(HEAD, Registry.installed())
    assert [str(problem) for problem in caught.value.problems] == [
        "plugins[0]: served-model-filter needs /v1/models; add models-data-extractor, which produces it, to plugins; "
        "it comes with a models-data-source"
    ]


def test_with_the_extractor_listed_the_source_comes_by_itself() -> None:
    config = load(HEAD + "- type: models-data-extractor\n", Registry.installed())
    fed = {feed.source: feed.extractors for feed in config.sources}
    assert fed["models-data-source"] == ("models-data-extractor",)
    assert fed["metrics-data-source"] == ("core-metrics-extractor",)


def test_in_a_mixed_pool_every_decision_is_for_a_server_of_the_model() -> None:
    view = mixed(("llama", "llama-sql"), ("qwen",), ("llama",))
    config = load(HEAD + "- type: models-data-extractor\n- type: random-picker\n", Registry.installed())
    director = build(config, np.random.default_rng(1), lambda: 0.0).director
    for model, servers in (("llama", {"10.0.0.0", "10.0.0.2"}), ("llama-sql", {"10.0.0.0"}), ("qwen", {"10.0.0.1"})):
        routes = [director.decide(request(model=model), view, NOW).outcome for _ in range(30)]
        named = {route.destinations[0].partition(":")[0] for route in routes if isinstance(route, Route)}
        assert named == servers
    outcome = director.decide(request(model="nobodys"), view, NOW).outcome
    assert isinstance(outcome, Refusal)
    assert (outcome.status, outcome.kind) == (404, "model_not_found")
    assert outcome.message == "model: 'nobodys' is served by no model server of this pool"


def test_a_model_that_may_be_served_isnt_said_to_be_unknown() -> None:
    made = ServedModelFilter("filter", ServedModelParameters(on_missing="Fail"))
    for view in (mixed(("llama",), None), pool(endpoint("e0"))):
        run = cycle(view, model="nobodys")
        assert not len(made.filter(run, view.layout.all_rows))
        assert run.refusal is None


def test_a_model_whose_servers_another_filter_has_left_out_isnt_unknown() -> None:
    view = mixed(("llama",), ("qwen",))
    run = cycle(view, model="llama")
    assert not len(ServedModelFilter("filter").filter(run, view.layout.all_rows[1:]))
    assert run.refusal is None
