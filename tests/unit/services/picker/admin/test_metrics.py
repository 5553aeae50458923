import math
from collections import Counter

import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from services.picker.admin import request_metrics
from services.picker.admin.metrics import FOLD_EVERY, PickerMetrics, PluginTimings
from services.picker.decision import Decision, RequestSummary
from services.picker.pipeline import build
from services.picker.request import Refusal, Route
from services.picker.scheduling.record import ProfileRun
from services.picker.state.histogram import Histogram
from services.picker.state.view import View
from shared.attributes import WAITING_QUEUE_SIZE
from shared.config import load as load_config
from shared.model import Endpoint
from shared.plugin import Registry
from shared.service.pages import SLICE
from tests.unit.services.picker.world import NOW, endpoint, facts, load, pool, report, request
from tests.work import counted

Samples = dict[tuple[str, tuple[str, ...]], float]


def metrics(view: View) -> tuple[PickerMetrics, CollectorRegistry]:
    registry = CollectorRegistry()
    return PickerMetrics(registry, view, lambda: NOW), registry


def scrape(registry: CollectorRegistry) -> Samples:
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, tuple(sample.labels.values())): sample.value for family in families for sample in family.samples
    }


def count(made: PickerMetrics, decision: Decision, seconds: float) -> request_metrics.OpenRequest | None:
    return made.decided(decision, decision.routed() if isinstance(decision.outcome, Route) else None, seconds)


def routed(view: View, row: int, model: str = "") -> Decision:
    layout = view.layout
    run = ProfileRun("p", layout.all_rows, (), layout.all_rows, (), np.zeros(len(layout)), "picker", (row,))
    return Decision(
        request=RequestSummary.of(request()),
        outcome=Route(destinations=(layout.authorities[row],)),
        layout=layout,
        runs={"p": run},
        primary="p",
        target_model=model,
    )


def test_a_histogram_counts_by_upper_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 3.0):
        histogram.observe(seconds)
    family = HistogramMetricFamily("x", "", labels=[])
    histogram.add_to(family)
    found = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    assert found == {"0.1": 2, "1": 3, "+Inf": 4, "x_count": 4, "x_sum": pytest.approx(3.65)}
    assert repr(histogram) == "<Histogram 4 times, 3.65 together>"


def test_what_is_noted_counts_as_if_it_had_been_observed() -> None:
    plain, late = Histogram((0.1, 1.0)), Histogram((0.1, 1.0))
    for round in ((0.05, 0.1), (), (0.5, 3.0, 1.0, 0.0)):
        for seconds in round:
            plain.observe(seconds)
            late.note(seconds)
        late.fold()
    late.observe(7.0)
    plain.observe(7.0)
    shown = []
    for histogram in (plain, late):
        family = HistogramMetricFamily("x", "", labels=[])
        histogram.add_to(family)
        shown.append([(sample.name, sample.labels, pytest.approx(sample.value)) for sample in family.samples])
    assert shown[0] == shown[1]
    assert (late.count, plain.count) == (7, 7)


def test_timings_are_counted_after_some_hundred_decisions_also_when_nobody_looks() -> None:
    view = pool("a1", "a2")
    made, _ = metrics(view)
    note = made.plugins.observe("Scorer", "queue-scorer", "queue")
    for _ in range(FOLD_EVERY + 1):
        note(0.001)
        made.answered(200, 0.001)
    assert len(made.plugins.seconds["Scorer", "queue-scorer", "queue"]._waiting) <= 2


def test_decisions_are_counted_by_status_and_endpoint() -> None:
    view = pool("a1", "a2")
    made, registry = metrics(view)
    count(made, routed(view, 1), 0.0001)
    count(made, routed(view, 1), 0.0001)
    count(
        made,
        Decision(request=RequestSummary.of(request()), outcome=Refusal(status=429, message=""), layout=view.layout),
        0.0001,
    )
    made.answered(413, 0.0)
    made.served("fallback")
    made.completed(0.7)
    found = scrape(registry)
    assert {status: found[("pointsman_picker_decisions_total", (status,))] for status in ("200", "429", "413")} == {
        "200": 2,
        "429": 1,
        "413": 1,
    }
    assert found[("pointsman_picker_picks_total", ("a2",))] == 2
    assert found[("pointsman_picker_picks_total", ("a1",))] == 0
    assert found[("pointsman_picker_served_total", ("fallback",))] == 1
    assert found[("pointsman_picker_decision_seconds_count", ())] == 4
    assert found[("pointsman_picker_request_seconds_bucket", ("1",))] == 1
    assert found[("pointsman_picker_request_seconds_bucket", ("0.5",))] == 0
    assert repr(made) == "<PickerMetrics 4 requests>"


def test_what_is_in_the_view_is_read_when_scraped() -> None:
    view = pool("a1", "a2")
    report(view, {WAITING_QUEUE_SIZE: [1, None]}, ages=0.5)
    view.apply_load(load("peer", {"a1": (3, 30)}), NOW)
    view.in_flight.charge("a1", 7)
    view.prefixes.add("a1", [1, 2], 9)
    found = scrape(metrics(view)[1])
    assert found[("pointsman_picker_endpoints", ())] == 2
    assert found[("pointsman_picker_inflight_requests", ("a1",))] == 4
    assert found[("pointsman_picker_inflight_tokens", ("a1",))] == 37
    assert found[("pointsman_picker_own_inflight_requests", ())] == 1
    assert found[("pointsman_picker_peers", ())] == 1
    assert found[("pointsman_picker_prefix_blocks", ())] == 2
    assert found[("pointsman_picker_frames_total", ())] == 1
    assert found[("pointsman_picker_attribute_age_seconds", ("a1",))] == 0.5
    assert math.isinf(found[("pointsman_picker_attribute_age_seconds", ("a2",))])


def test_what_scheduling_takes_is_timed_plugin_by_plugin_also_under_the_names_that_dashboards_know() -> None:
    view = pool("a1")
    made, registry = metrics(view)
    made.plugins.observe("Scorer", "queue-scorer", "mine")(0.00007)
    made.plugins.observe("Scorer", "queue-scorer", "mine")(1.0)
    count(made, routed(view, 0), 0.5)
    found = scrape(registry)
    assert found["pointsman_picker_plugin_seconds_bucket", ("Scorer", "0.0001", "mine", "queue-scorer")] == 1
    for name in ("pointsman_picker_plugin", "llm_d_epp_plugin_duration", "inference_extension_plugin_duration"):
        assert found[f"{name}_seconds_count", ("Scorer", "mine", "queue-scorer")] == 2
    for prefix in ("llm_d_epp_", "inference_extension_"):
        assert found[f"{prefix}scheduler_e2e_duration_seconds_count", ()] == 1


def test_timings_end_with_the_last_configuration_that_has_the_plugin() -> None:
    made, registry = metrics(View())

    def use(*names: str, fails: bool = False) -> None:
        timings = PluginTimings(made.plugins)
        for name in names:
            timings.observe("Scorer", "queue-scorer", name)(0.001)
        if not fails:
            made.plugins = timings

    def counts() -> dict[str, float]:
        name = "pointsman_picker_plugin_seconds_count"
        return {labels[1]: count for (sample, labels), count in scrape(registry).items() if sample == name}

    for number in range(10):
        use("kept", f"renamed-{number}")
    assert counts() == {"kept": 10, "renamed-9": 1}
    use("renamed-10", fails=True)
    assert counts() == {"kept": 10, "renamed-9": 1}
    use("renamed-11")
    assert counts() == {"renamed-11": 1}


def test_large_families_are_made_in_slices_while_what_they_show_changes() -> None:
    made, registry = metrics(view := pool("a1"))
    for number in range(250):
        made.plugins.observe("Scorer", "queue-scorer", f"q{number}")
    for number in range(50):
        count(made, routed(view, 0, f"m{number}"), 0.1).answered(200)  # type: ignore[union-attr]
    names = Counter[str]()
    for family in registry.collect():
        names[family.name] += 1
        assert len(family.samples) < SLICE + 100
        made.plugins.observe("Scorer", "queue-scorer", f"more-{names.total()}")
        count(made, routed(view, 0, f"more-{names.total()}"), 0.1).answered(200)  # type: ignore[union-attr]
    assert names["pointsman_picker_plugin_seconds"] > 5
    assert names["llm_d_epp_plugin_duration_seconds"] > 5
    assert names["llm_d_epp_request_size_bytes"] > 2


def test_a_page_right_after_a_change_of_the_endpoints_has_all_of_them() -> None:
    """The layout is made anew when somebody looks."""
    view = pool("a1")
    _, registry = metrics(view)
    scrape(registry)
    for id, added in facts(endpoint("a2"), endpoint("a3")).items():
        view.upsert(id, added)
    found = scrape(registry)
    assert {labels for name, labels in found if name == "pointsman_picker_endpoint_healthy"} == {
        ("a1",),
        ("a2",),
        ("a3",),
    }


def test_endpoints_that_have_gone_are_forgotten() -> None:
    view = pool("a1", "a2")
    made, registry = metrics(view)
    count(made, routed(view, 0), 0.0)
    count(made, routed(view, 1), 0.0)
    view.delete("pool.endpoint.a1")
    made.forget_endpoints()
    assert made.requests.picks == {"a2": 1}
    assert ("pointsman_picker_picks_total", ("a1",)) not in scrape(registry)


def test_counts_by_model_and_endpoint_are_told_and_forgotten_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred models at ten thousand endpoints are a million."""
    models, endpoints = 50, 200
    view = pool(*(f"a{number:03}" for number in range(endpoints)))
    made, registry = metrics(view)
    for model in range(models):
        for row in range(endpoints):
            opened = count(made, routed(view, row, f"m{model}"), 0.0)
            assert opened is not None
            opened.answered(200)
    steps, families = list[int](), registry.collect()
    while True:
        with counted() as work:
            family = next(iter(families), None)
        if family is None:
            break
        steps.append(work.instructions)
    assert max(steps) < 10 * models * endpoints

    def left(endpoint: str) -> int:
        wanted = {"endpoint_name": endpoint}
        return sum(
            wanted.items() <= sample.labels.items() for family in registry.collect() for sample in family.samples
        )

    assert left("a000") == left("a001") == models
    monkeypatch.setattr(request_metrics, "FORGOTTEN_AT_ONCE", 10 * endpoints)
    before = sum(map(len, made.requests.scheduled.values()))
    view.delete("pool.endpoint.a000")
    made.forget_endpoints()
    assert sum(map(len, made.requests.scheduled.values())) == before - 10
    for _ in range(models // 10):
        made.forget_endpoints()
    assert sum(map(len, made.requests.scheduled.values())) == before - models
    assert left("a001") == models


def test_attempts_to_schedule_are_counted_by_who_got_the_request() -> None:
    ranks = [
        Endpoint(id=f"ns/pod-rank-{rank}", name=f"pod-rank-{rank}", namespace="ns", address="::1", port=port, rank=rank)
        for rank, port in enumerate((8000, 8001))
    ]
    view = pool(*ranks)
    made, registry = metrics(view)
    for row, model in ((0, "m"), (1, "m"), (1, "m"), (1, "other")):
        opened = count(made, routed(view, row, model), 0.0)
        assert opened is not None
        opened.answered(200)
    nobody = ProfileRun("p", view.layout.all_rows, (), view.layout.all_rows[:0], (), np.zeros(0), "picker", ())
    refusal = Refusal(status=429, message="")
    for runs in ({"p": nobody}, {}):
        count(made, msgspec.structs.replace(routed(view, 0, "m"), outcome=refusal, runs=runs), 0.0)
    for name, label in (("llm_d_epp_", "endpoint_name"), ("inference_extension_", "pod_name")):

        def attempts(*values: str, name: str = name, label: str = label) -> float | None:
            labels = dict(zip(("status", "target_model_name", label, "namespace", "port"), values, strict=True))
            return registry.get_sample_value(f"{name}scheduler_attempts_total", labels)

        assert attempts("success", "m", "pod", "ns", "8000") == 1
        assert attempts("success", "m", "pod", "ns", "8001") == 2
        assert attempts("success", "other", "pod", "ns", "8001") == 1
        assert attempts("failure", "m", "", "", "") == 1, "one that wasn't scheduled is none"
    view.delete("pool.endpoint.ns/pod-rank-1")
    made.forget_endpoints()
    assert attempts("success", "m", "pod", "ns", "8001") is None
    assert attempts("success", "m", "pod", "ns", "8000") == 1


def test_disaggregated_requests_are_counted_by_the_stages_that_serve_them() -> None:
    view = pool("a1")
    made, registry = metrics(view)
    known = count(made, routed(view, 0, "m"), 0.0)
    assert known is not None
    known.answered(200)
    for stages in ("decode-only", "prefill-decode", "prefill-decode", ""):
        count(made, msgspec.structs.replace(routed(view, 0, "m"), stages=stages), 0.0)
    for name in ("llm_d_epp_", "llm_d_inference_scheduler_"):
        counted = {
            stages: registry.get_sample_value(
                f"{name}disagg_decision_total", {"model_name": "m", "decision_type": stages}
            )
            for stages in ("decode-only", "prefill-decode", "")
        }
        assert counted == {"decode-only": 1, "prefill-decode": 2, "": None}


def test_the_prefix_index_tells_its_size_and_how_much_the_chosen_endpoints_held() -> None:
    view = pool("a1", "a2")
    _, registry = metrics(view)
    assert registry.get_sample_value("inference_extension_prefix_indexer_size") is None, "nobody looks prompts up"
    made = build(load_config("", Registry.installed()), np.random.default_rng(1), lambda: 0.0).director
    for subset, blocks in ((("10.0.0.1",), 4), (("10.0.0.1",), 8), (("10.0.0.2",), 8)):
        made.decide(request(bytes(256) * blocks, subset=subset), view, NOW)
    labels = {"plugin_name": "approx-prefix-cache-producer", "plugin_type": "approx-prefix-cache-producer"}
    for prefix, more in (("llm_d_epp_prefix_indexer_", labels), ("inference_extension_prefix_indexer_", {})):

        def sample(name: str, prefix: str = prefix, **le: str) -> float | None:
            return registry.get_sample_value(f"{prefix}{name}", {**more, **le})  # noqa: B023

        assert sample("size") == 16, "8 blocks of each"
        assert (sample("hit_ratio_count"), sample("hit_ratio_sum")) == (3, 0.5)
        ratios = [
            sample("hit_ratio_bucket", le=bound)
            for bound in ["0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1"]
        ]
        assert ratios == [2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3]
        assert (sample("hit_bytes_count"), sample("hit_bytes_sum")) == (3, 1024)
        sizes = ["0", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384", "32768", "65536"]
        assert [sample("hit_bytes_bucket", le=bound) for bound in sizes] == [2] * 7 + [3] * 7
