"""Requests by model, under the names that dashboards of the Go original know."""

import math
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.picker.admin.request_metrics import OTHER, SHOWN, OpenRequest, RequestCollector, RequestMetrics
from services.picker.decision import Asked, Decision
from services.picker.requests.request import Content, Refusal, Request, Route
from services.picker.responses.usage import Usage
from services.picker.state.view import View
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from shared.model import Pool
from tests.unit.services.picker.world import NOW, pool, report, request

PRESENT, FORMER = "llm_d_epp_", "inference_objective_"


def decision(model: str = "m", target: str = "", **more: Any) -> Decision:
    asked = Asked.of(Request(id="i", headers=request().headers, content=Content(model=model), body_size=200))
    outcome = Route(destinations=("10.0.0.1:8000",))
    return Decision(**{"asked": asked, "outcome": outcome, "layout": View().layout, "model": target or model, **more})


def routed(metrics: RequestMetrics, *args: str, **more: Any) -> OpenRequest:
    opened = metrics.decided(decision(*args, **more))
    assert opened is not None
    return opened


def scrape(metrics: RequestMetrics, view: View | None = None, *, former_names: bool = True) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(RequestCollector(metrics, view or View(), lambda: NOW, former_names=former_names))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        f"{one.name}{{{','.join(f'{name}={value}' for name, value in one.labels.items())}}}": one.value
        for family in families
        for one in family.samples
    }


def test_routed_requests_are_counted_by_model_target_and_priority() -> None:
    metrics = RequestMetrics()
    for priority in (0, 0, -1):
        routed(metrics, "m", "m-v2", priority=priority)
    found = scrape(metrics)
    for prefix in (PRESENT, FORMER):
        assert found[f"{prefix}request_total{{model_name=m,priority=0,target_model_name=m-v2}}"] == 2
        assert found[f"{prefix}request_total{{model_name=m,priority=-1,target_model_name=m-v2}}"] == 1
    assert found["llm_d_epp_request_size_bytes_sum{model_name=m,target_model_name=m-v2}"] == 600
    assert found["inference_objective_request_sizes_sum{model_name=m,target_model_name=m-v2}"] == 600


def test_requests_run_until_they_are_completed() -> None:
    metrics = RequestMetrics()
    opened = routed(metrics)
    assert scrape(metrics)["llm_d_epp_request_running{model_name=m}"] == 1
    assert scrape(metrics)["inference_objective_running_requests{model_name=m}"] == 1
    opened.completed(1.0, None, 0)
    assert scrape(metrics)["llm_d_epp_request_running{model_name=m}"] == 0


def test_a_response_tells_durations_and_tokens() -> None:
    metrics = RequestMetrics()
    opened = routed(metrics)
    opened.status = 200
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


def test_a_request_without_a_response_has_no_duration() -> None:
    metrics = RequestMetrics()
    routed(metrics).completed(9.0, None, 0)
    assert "llm_d_epp_request_duration_seconds_count{model_name=m,target_model_name=m}" not in scrape(metrics)


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "BadRequest"), (404, "NotFound"), (413, "BadRequest"), (429, "ResourceExhausted"), (500, "Internal")],
)
def test_refusals_are_errors_by_code(status: int, code: str) -> None:
    metrics = RequestMetrics()
    assert metrics.decided(decision(outcome=Refusal(status=status, message=""))) is None
    metrics.refused(status)
    found = scrape(metrics)
    assert found[f"llm_d_epp_request_error_total{{error_code={code},model_name=m,target_model_name=m}}"] == 1
    assert found[f"llm_d_epp_request_error_total{{error_code={code},model_name=,target_model_name=}}"] == 1


def test_a_model_servers_error_is_one_of_the_model() -> None:
    metrics = RequestMetrics()
    opened = routed(metrics)
    opened.status = 500
    opened.completed(0.1, None, 0)
    name = "inference_objective_request_error_total{error_code=ModelServerError,model_name=m,target_model_name=m}"
    assert scrape(metrics)[name] == 1


def test_models_beyond_the_limit_are_counted_together() -> None:
    metrics = RequestMetrics(models=2)
    for name in ("a", "b", "c", "d", "a"):
        routed(metrics, name).completed(1.0, None, 0)
    found = scrape(metrics, former_names=False)
    counts = {name: value for name, value in found.items() if name.startswith("llm_d_epp_request_total")}
    assert counts == {
        "llm_d_epp_request_total{model_name=a,priority=0,target_model_name=a}": 2,
        "llm_d_epp_request_total{model_name=b,priority=0,target_model_name=b}": 1,
        f"llm_d_epp_request_total{{model_name={OTHER},priority=0,target_model_name={OTHER}}}": 2,
    }


def test_pairs_of_models_are_bounded_too() -> None:
    metrics = RequestMetrics(models=20)
    for model in range(20):
        for target in range(20):
            routed(metrics, f"m{model}", f"m{target}")
    assert len(metrics.series) <= 2 * 20 + 1


def test_a_long_model_name_is_cut() -> None:
    metrics = RequestMetrics()
    routed(metrics, "x" * 5000)
    assert {len(model) for model, _ in metrics.series} == {SHOWN}


def test_rewrites_are_counted_by_resource() -> None:
    metrics = RequestMetrics()
    routed(metrics, "m", "m-v2", rewrite="rollout")
    labels = "{model_name=m,model_rewrite_name=rollout,target_model=m-v2}"
    found = scrape(metrics)
    assert found[f"llm_d_epp_model_rewrite_decisions_total{labels}"] == 1
    assert found[f"inference_extension_model_rewrite_decisions_total{labels}"] == 1


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


def test_former_names_can_be_left_out() -> None:
    metrics = RequestMetrics()
    routed(metrics, rewrite="r")
    assert all(name.startswith(PRESENT) for name in scrape(metrics, pool("a1"), former_names=False))


def test_a_request_without_a_model_isnt_counted_as_running() -> None:
    metrics = RequestMetrics()
    opened = routed(metrics, "")
    opened.completed(1.0, None, 0)
    assert metrics.running == {}
