"""Requests by model, under the names that dashboards of the Go original know."""

import math
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.picker.admin.families import Families
from services.picker.admin.model_labels import IDLE, OTHER, SHOWN
from services.picker.admin.request_metrics import OpenRequest, RequestMetrics, request_families
from services.picker.admin.scheduler_metrics import pool_families
from services.picker.decision import Decision, RequestSummary
from services.picker.request import Content, Refusal, Request, Route
from services.picker.responses.usage import Usage
from services.picker.scheduling.record import ProfileRun
from services.picker.state.view import View
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from shared.model import Pool
from tests.unit.services.picker.world import NOW, pool, report, request

LAYOUT = pool("a1").layout
PICKED = ProfileRun("p", LAYOUT.all_rows, (), LAYOUT.all_rows, (), np.zeros(1), "picker", (0,))
PRESENT, FORMER = "llm_d_epp_", "inference_objective_"


def decision(model: str = "m", target: str = "", **more: Any) -> Decision:
    asked = RequestSummary.of(Request(id="i", headers=request().headers, content=Content(model=model), body_size=200))
    outcome = Route(destinations=("10.0.0.1:8000",))
    fields = {"request": asked, "outcome": outcome, "layout": LAYOUT, "target_model": target or model}
    if "outcome" not in more:
        fields |= {"runs": {"p": PICKED}, "primary": "p"}
    return Decision(**{**fields, **more})


def count(metrics: RequestMetrics, decision: Decision) -> OpenRequest | None:
    return metrics.decided(decision, decision.routed() if isinstance(decision.outcome, Route) else None)


def routed(metrics: RequestMetrics, *args: str, status: int | None = 200, **more: Any) -> OpenRequest:
    """A routed request whose response has begun."""
    opened = count(metrics, decision(*args, **more))
    assert opened is not None
    opened.answered(status)
    return opened


def models_of(metrics: RequestMetrics) -> dict[str, float]:
    """Routed requests by the client's model."""
    name = "llm_d_epp_request_total{model_name="
    counts = scrape(metrics, former_names=False).items()
    return {key[len(name) :].partition(",")[0]: count for key, count in counts if key.startswith(name)}


def scrape(metrics: RequestMetrics, view: View | None = None, *, former_names: bool = True) -> dict[str, float]:
    registry = CollectorRegistry()
    for make in (partial(request_families, metrics), partial(pool_families, view or View(), NOW)):
        registry.register(Families(make, former_names=former_names))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        f"{sample.name}{{{','.join(f'{name}={value}' for name, value in sample.labels.items())}}}": sample.value
        for family in families
        for sample in family.samples
    }


def test_routed_requests_are_counted_by_model_target_priority_and_rewrite_and_run_until_they_are_completed() -> None:
    metrics = RequestMetrics(named=lambda model: model == "m")
    opened = [
        routed(metrics, "m", "m-v2", priority=priority, rewrite="rollout", status=None) for priority in (0, 0, -1)
    ]
    opened[0].completed(1.0, None, 0)
    found = scrape(metrics)
    models = "model_name=m,target_model_name=m-v2"
    rewrites = "model_rewrite_decisions_total{model_name=m,model_rewrite_name=rollout,target_model=m-v2}"
    for prefix, running, sizes in (
        (PRESENT, "request_running", "request_size_bytes_sum"),
        (FORMER, "running_requests", "request_sizes_sum"),
    ):
        assert found[f"{prefix}request_total{{model_name=m,priority=0,target_model_name=m-v2}}"] == 2
        assert found[f"{prefix}request_total{{model_name=m,priority=-1,target_model_name=m-v2}}"] == 1
        assert found[f"{prefix}{running}{{model_name=m}}"] == 2
        assert found[f"{prefix}{sizes}{{{models}}}"] == 600
    assert found[f"llm_d_epp_{rewrites}"] == found[f"inference_extension_{rewrites}"] == 3
    assert not [name for name in found if "request_duration" in name], "without a response there is none"
    assert all(name.startswith(PRESENT) for name in scrape(metrics, pool("a1"), former_names=False))


def test_a_response_tells_durations_and_tokens() -> None:
    metrics = RequestMetrics()
    opened = routed(metrics)
    opened.first_token(0.5)
    opened.completed(2.5, Usage(prompt=100, completion=21, cached=0), 5000)
    found = scrape(metrics)
    labels = "{model_name=m,target_model_name=m}"
    expected = {
        "request_duration_seconds": ("request_duration_seconds", 2.5),
        "response_size_bytes": ("response_sizes", 5000),
        "request_input_tokens": ("input_tokens", 100),
        "request_output_tokens": ("output_tokens", 21),
        "request_cached_tokens": ("prompt_cached_tokens", 0),
        "request_ntpot_seconds": ("normalized_time_per_output_token_seconds", 2.5 / 21),
        "request_ttft_seconds": ("request_ttft_seconds", 0.5),
        "request_streaming_tpot_seconds": ("request_tpot_seconds", 2.0 / 20),
    }
    for present, (former, total) in expected.items():
        for name in (f"{PRESENT}{present}", f"{FORMER}{former}"):
            assert found[f"{name}_count{labels}"] == 1
            assert found[f"{name}_sum{labels}"] == pytest.approx(total)


@pytest.mark.parametrize(("status", "errors"), [(200, None), (399, None), (400, 1), (500, 1)])
def test_from_400_on_a_response_is_the_model_servers_error(status: int, errors: float | None) -> None:
    metrics = RequestMetrics(named=lambda _: True)
    opened = routed(metrics, status=status)
    opened.completed(0.1, None, 0)
    name = f"{PRESENT}request_error_total{{error_code=ModelServerError,model_name=m,target_model_name=m}}"
    assert scrape(metrics).get(name) == errors


@pytest.mark.parametrize(("tokens", "count"), [(1, None), (2, 1)])
def test_the_time_per_token_is_that_between_tokens(tokens: int, count: float | None) -> None:
    metrics = RequestMetrics()
    opened = routed(metrics)
    opened.first_token(0.5)
    opened.completed(2.5, Usage(prompt=100, completion=tokens, cached=0), 5000)
    name = f"{PRESENT}request_streaming_tpot_seconds_count{{model_name=m,target_model_name=m}}"
    assert scrape(metrics).get(name) == count


def test_a_response_that_broke_off_has_no_times_and_no_size() -> None:
    metrics = RequestMetrics(named=lambda _: True)
    opened = routed(metrics, status=500)
    opened.first_token(0.5)
    opened.completed(2.5, Usage(prompt=100, completion=21, cached=0), 5000, aborted=True)
    found = scrape(metrics)
    counted = {name.partition("_count{")[0] for name in found if "_count{" in name and name.startswith(PRESENT)}
    names = ("size_bytes", "ttft_seconds", "input_tokens", "output_tokens", "cached_tokens")
    assert counted == {f"{PRESENT}request_{label}" for label in names}
    errors = "llm_d_epp_request_error_total{error_code=ModelServerError,model_name=m,target_model_name=m}"
    assert found[errors] == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "BadRequest"), (404, "NotFound"), (413, "BadRequest"), (429, "ResourceExhausted"), (500, "Internal")],
)
def test_refusals_are_errors_by_code(status: int, code: str) -> None:
    metrics = RequestMetrics(named=lambda model: model == "m")
    assert count(metrics, decision(outcome=Refusal(status=status, message=""))) is None
    metrics.refused(status)
    found = scrape(metrics)
    assert found[f"llm_d_epp_request_error_total{{error_code={code},model_name=m,target_model_name=m}}"] == 1
    assert found[f"llm_d_epp_request_error_total{{error_code={code},model_name=,target_model_name=}}"] == 1


def test_models_beyond_the_limit_are_counted_together() -> None:
    metrics = RequestMetrics(models=2)
    for name in ("a", "b", "c", "d", "a"):
        routed(metrics, name).completed(1.0, None, 0)
    assert models_of(metrics) == {"a": 2, "b": 1, OTHER: 2}


@pytest.mark.parametrize("status", [None, 400, 404, 500])
def test_a_model_that_no_server_has_answered_for_has_no_series(status: int | None) -> None:
    metrics = RequestMetrics(models=2)
    for number in range(10):
        routed(metrics, f"invented-{number}", status=status).completed(1.0, None, 0)
    for _ in range(2):
        routed(metrics, "a").completed(1.0, None, 0)
    assert models_of(metrics) == {OTHER: 10, "a": 2}


@pytest.mark.parametrize("model", ["a", "invented"])
def test_a_request_is_counted_once_and_runs_from_its_decision_on(model: str) -> None:
    metrics = RequestMetrics(named=lambda model: model == "a")
    opened = count(metrics, decision(model))
    assert opened is not None
    running = {"a": "a"}.get(model, OTHER)
    assert scrape(metrics)[f"llm_d_epp_request_running{{model_name={running}}}"] == 1
    opened.answered(200)
    opened.completed(1.0, None, 0)
    assert (models_of(metrics), metrics.running().total()) == ({model: 1}, 0)


RENAMES: dict[str, dict[str, Any]] = {
    "a header": {"target": "real"},
    "a rewrite of every model": {"target": "real", "rewrite": "rollout"},
}


@pytest.mark.parametrize("rename", RENAMES)
def test_invented_names_of_rewritten_requests_make_room_for_models_of_the_pool(rename: str) -> None:
    metrics = RequestMetrics(models=4, named=lambda model: model == "named")
    for number in range(10):
        routed(metrics, f"invented-{number}", **RENAMES[rename]).completed(1.0, None, 0)
    for model in ("real", "named", "real-2"):
        routed(metrics, model).completed(1.0, None, 0)
    assert {"real", "real-2", "named"} < models_of(metrics).keys()
    assert len(models_of(metrics)) <= 5


def test_a_model_that_a_resource_names_has_a_series_where_servers_answer_to_any_name() -> None:
    metrics = RequestMetrics(models=3, named=lambda model: model.startswith("named"))
    under_way = [routed(metrics, f"invented-{number}") for number in range(10)]
    for model in ("named", "named-2", "named-3", "named-4", "named"):
        routed(metrics, model).completed(1.0, None, 0)
    for opened in under_way:
        opened.completed(1.0, None, 0)
    assert models_of(metrics) == {"named": 2, "named-2": 1, "named-3": 1, OTHER: 8}
    assert set(metrics.running().values()) == {0}


def test_a_model_that_is_not_used_makes_room() -> None:
    now = 0.0
    metrics = RequestMetrics(models=3, clock=lambda: now)
    for at, model in ((0.0, "a"), (1.0, "b"), (IDLE - 1, "b"), (IDLE - 0.5, "c"), (IDLE, "c"), (IDLE + 1, "d")):
        now = at
        routed(metrics, model, "v2", rewrite="r").completed(1.0, None, 0)
    found = scrape(metrics, former_names=False)
    assert models_of(metrics) == {"b": 2, "c": 1, OTHER: 2}
    rewrites = "llm_d_epp_model_rewrite_decisions_total{model_name=a"
    assert not [name for name in found if name.startswith(rewrites)]


def test_refused_requests_for_invented_models_leave_the_names_to_real_ones() -> None:
    metrics = RequestMetrics(models=2, named=lambda model: model == "named")
    refusal = Refusal(status=404, message="")
    for number in range(10):
        count(metrics, decision(f"invented-{number}", outcome=refusal))
        count(metrics, decision("named", f"asked-by-header-{number}", outcome=refusal))
    count(metrics, decision("another", outcome=refusal))
    routed(metrics, "another").completed(1.0, None, 0)
    count(metrics, decision("another", outcome=refusal))
    errors = {
        name: value
        for name, value in scrape(metrics, former_names=False).items()
        if name.startswith("llm_d_epp_request_error_total")
    }
    assert errors == {
        f"llm_d_epp_request_error_total{{error_code=NotFound,model_name={model},target_model_name={target}}}": count
        for model, target, count in ((OTHER, OTHER, 11), ("named", OTHER, 10), ("another", "another", 1))
    }


def test_the_target_of_a_rule_is_told_apart_though_the_request_is_refused() -> None:
    metrics = RequestMetrics(named=lambda model: model == "named")
    count(metrics, decision("named", "named-v2", rewrite="r", outcome=Refusal(status=429, message="")))
    assert set(metrics.series) == {("named", "named-v2")}


ORIGINAL_TOKENS = "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384 32778 65536 131072 262144 524288 1.048576e+06"
ORIGINAL_BOUNDS = {
    "request_sizes": "64 128 256 512 1024 2048 4096 8192 16384 32768 65536 131072 262144 524288 1.048576e+06 "
    "2.097152e+06 4.194304e+06 8.388608e+06 1.6777216e+07 3.3554432e+07 6.7108864e+07 1.34217728e+08 2.68435456e+08 "
    "5.36870912e+08 1.073741824e+09",
    "response_sizes": "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384 32778 65536",
    "input_tokens": ORIGINAL_TOKENS,
    "prompt_cached_tokens": ORIGINAL_TOKENS,
    "output_tokens": "1 8 16 32 64 128 256 512 1024 2048 4096 8192",
    "normalized_time_per_output_token_seconds": "0.001 0.002 0.005 0.01 0.02 0.05 0.1 0.2 0.5 1 2 5 10",
    "request_duration_seconds": "0.005 0.025 0.05 0.1 0.2 0.4 0.6 0.8 1 1.25 1.5 2 3 4 5 6 8 10 15 20 30 45 60 120 180 "
    "240 300 360 480 600 900 1200 1800 2700 3600",
    "request_tpot_seconds": "0.0005 0.00205 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.125 0.15 0.2 0.3 0.4 0.5 0.6 0.8 1 "
    "1.5 2 3 4.5 6 12 18 24 30 36 48 60 90 120 180 270 360",
}
"""As the Go original writes them on its page."""


@pytest.mark.parametrize("name", ORIGINAL_BOUNDS)
def test_a_histogram_has_the_bounds_that_dashboards_of_the_go_original_name(name: str) -> None:
    metrics = RequestMetrics()
    opened = routed(metrics)
    opened.first_token(0.5)
    opened.completed(2.5, Usage(prompt=100, completion=21, cached=0), 5000)
    start = f"inference_objective_{name}_bucket{{le="
    bounds = {line[len(start) :].partition(",")[0] for line in scrape(metrics) if line.startswith(start)}
    assert bounds >= {*ORIGINAL_BOUNDS[name].split(), "+Inf"}


def test_pairs_of_models_are_bounded_too() -> None:
    metrics = RequestMetrics(models=20)
    for model in range(20):
        for target in range(20):
            routed(metrics, f"m{model}", f"m{target}")
    assert len(metrics.series) <= 2 * 20 + 1


RESOURCES = {
    "a rule for the model": ("base", "canary"),
    "a rule for every model": ("real-0", "canary"),
    "a rule for every model, and a name that no server knows": ("unknown", "canary"),
}


@pytest.mark.parametrize("pair", RESOURCES.values(), ids=RESOURCES)
def test_pairs_of_a_resource_have_series_however_many_pairs_clients_name_in_headers(pair: tuple[str, str]) -> None:
    metrics = RequestMetrics(models=25, named=lambda model: model in ("base", "canary"))
    models = [*(f"real-{number}" for number in range(8)), "base", "canary"]
    chosen = [(prefix + model, target) for prefix in ("", "invented-") for model, target in product(models, models)]
    under_way = [routed(metrics, *names) for names in chosen if names != pair]
    under_way += [routed(metrics, *pair, rewrite="rollout") for _ in range(5)]
    assert metrics.series[pair].running == metrics.series[pair].requests[0] == 5
    assert sum(model != target for model, target in metrics.series) <= 25
    for opened in under_way:
        opened.completed(1.0, None, 0)
    assert set(metrics.running().values()) == {0}


def test_pairs_that_resources_name_make_room_by_rank() -> None:
    metrics = RequestMetrics(models=6, named=lambda model: model in ("base", "canary"))
    for number, target in product(range(3), ("canary", "v2")):
        routed(metrics, f"invented-{number}", target, rewrite="every model")
    routed(metrics, "base", "canary", rewrite="rollout")
    routed(metrics, "invented-0", "base", rewrite="every model")
    assert metrics.series["base", "canary"].requests == metrics.series[OTHER, OTHER].requests == {0: 1}
    assert {key[1:] for key in metrics.rewrites} == metrics.series.keys()


def test_a_pair_that_is_not_used_makes_room() -> None:
    now = 0.0
    metrics = RequestMetrics(models=3, named=lambda _: True, clock=lambda: now)
    uses = [(0.0, "ab"), (1.0, "ba"), (2.0, "ac"), (IDLE - 1, "ab"), (IDLE, "bc"), (IDLE + 1, "ca"), (IDLE + 1, "cb")]
    for at, pair in uses:
        now = at
        routed(metrics, *pair, rewrite="r")
    assert set(metrics.series) == {("a", "b"), ("a", "c"), ("c", "a"), (OTHER, OTHER)}
    assert metrics.series[OTHER, OTHER].requests == {0: 2}


def test_a_model_that_is_called_like_all_others_is_one_of_them() -> None:
    metrics = RequestMetrics(models=2, named=lambda model: model in ("named", OTHER))
    for number in range(10):
        routed(metrics, f"invented-{number}", status=404)
    for model in (OTHER, "a", "b", "named"):
        routed(metrics, model)
    assert models_of(metrics) == {OTHER: 11, "b": 1, "named": 1}


@pytest.mark.parametrize("newcomer", ["served", "named"])
def test_a_model_keeps_the_highest_rank_that_it_had(newcomer: str) -> None:
    named = set[str]()
    metrics = RequestMetrics(models=2, named=named.__contains__)
    routed(metrics, "real", "target")
    if newcomer == "named":
        named |= {"real", "named"}
    routed(metrics, "real")
    routed(metrics, "target")
    routed(metrics, newcomer)
    assert "real" in models_of(metrics)
    assert (newcomer in models_of(metrics)) == (newcomer == "named"), "it takes the target's place"


def test_a_long_model_name_is_cut() -> None:
    metrics = RequestMetrics()
    routed(metrics, "x" * 5000)
    assert {len(model) for model in models_of(metrics)} == {SHOWN}


def test_a_pools_averages_are_over_what_is_fresh() -> None:
    view = pool("a1", "a2", "a3")
    view.upsert("pool.pool", Pool(name="llama"))
    report(view, {WAITING_QUEUE_SIZE: [2, 4, 100], KV_CACHE_USAGE: [0.25, 0.75, 0.5]}, now=NOW - 10)
    report(view, {WAITING_QUEUE_SIZE: [2, 4, math.nan]}, now=NOW)
    found = scrape(RequestMetrics(), view)
    assert found["llm_d_epp_average_queue_size{name=llama}"] == 3
    assert found["inference_pool_average_queue_size{name=llama}"] == 3
    assert found["llm_d_epp_std_dev_queue_size{name=llama}"] == 1
    assert found["llm_d_epp_ready_endpoints{name=llama}"] == found["inference_pool_ready_pods{name=llama}"] == 2
    assert not [name for name in found if "kv_cache_utilization" in name]


def test_the_queue_of_every_endpoint_is_shown_also_an_old_one() -> None:
    view = pool("a1", "a2", "a3-rank-1")
    view.upsert("pool.pool", Pool(name="llama"))
    report(view, {WAITING_QUEUE_SIZE: [2, None, 7]}, now=NOW - 60)
    found = scrape(RequestMetrics(), view)
    assert {name: value for name, value in found.items() if "_queue_size" in name} == {
        "llm_d_epp_per_endpoint_queue_size{model_server_endpoint=a1,name=llama}": 2,
        "llm_d_epp_per_endpoint_queue_size{model_server_endpoint=a3-rank-1,name=llama}": 7,
        "inference_pool_per_pod_queue_size{model_server_pod=a1,name=llama}": 2,
        "inference_pool_per_pod_queue_size{model_server_pod=a3-rank-1,name=llama}": 7,
    }


def test_a_request_without_a_model_isnt_counted_as_running() -> None:
    metrics = RequestMetrics()
    opened = routed(metrics, "")
    opened.completed(1.0, None, 0)
    assert metrics.running() == {}
