"""How the metrics of several workers become one page."""

from collections import deque
from collections.abc import Iterable, Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.parser import text_string_to_metric_families

from services.picker.app import PickerService
from services.picker.settings.picker import PickerSettings
from services.picker.workers.exposition import (
    MIN,
    STEP,
    SUM,
    Counts,
    Page,
    joining,
    parsing,
    text,
)
from services.picker.workers.supervisor import Supervisor
from shared.service.pages import SLICE, exposition


def parse(text: str) -> Page:
    """A page, read in one go."""
    page: Page = {}
    deque(parsing(text.encode(), page), maxlen=0)
    return page


def joined(pages: Iterable[Page]) -> Page:
    """One page that has the families of all, joined in one go."""
    total: Page = {}
    deque(joining(pages, total), maxlen=0)
    return total


JOINED = [
    ("counter", "requests_total", 'requests_total{status="200"}', "2.0", "3.5", 5.5),
    ("histogram", "seconds", 'seconds_bucket{le="+Inf"}', "2.0", "3.0", 5),
    ("gauge", "pointsman_ext_proc_open_streams", "pointsman_ext_proc_open_streams", "2.0", "3.0", 5),
    ("gauge", "pointsman_view_synced", "pointsman_view_synced", "1.0", "0.0", 0),
    ("gauge", "pointsman_view_age_seconds", "pointsman_view_age_seconds", "0.5", "+Inf", float("inf")),
    ("gauge", "pointsman_picker_queue_requests", "pointsman_picker_queue_requests", "7.0", "6.0", 7),
    ("gauge", "of_a_plugin", "of_a_plugin", "NaN", "6.0", 6),
    ("gauge", "of_a_plugin", "of_a_plugin", "6.0", "NaN", 6),
    ("gauge", "requests_created", "requests_created", "1.7e+09", "1.8e+09", 1.7e9),
]

MAX = {
    "inference_pool_average_kv_cache_utilization",
    "inference_pool_average_queue_size",
    "inference_pool_average_running_requests",
    "inference_pool_per_pod_queue_size",
    "inference_pool_ready_pods",
    "llm_d_epp_average_kv_cache_utilization",
    "llm_d_epp_average_queue_size",
    "llm_d_epp_average_running_requests",
    "llm_d_epp_flow_control_capacity_utilization_bytes",
    "llm_d_epp_flow_control_capacity_utilization_requests",
    "llm_d_epp_flow_control_global_capacity_utilization_bytes",
    "llm_d_epp_flow_control_global_capacity_utilization_requests",
    "llm_d_epp_flow_control_pool_saturation",
    "llm_d_epp_per_endpoint_queue_size",
    "llm_d_epp_ready_endpoints",
    "llm_d_epp_std_dev_kv_cache_utilization",
    "llm_d_epp_std_dev_queue_size",
    "llm_d_epp_std_dev_running_requests",
    "pointsman_build_info",
    "pointsman_config_info",
    "pointsman_event_loop_longest_pause_seconds",
    "pointsman_picker_attribute_age_seconds",
    "pointsman_picker_attribute_values_left_out",
    "pointsman_picker_draining_endpoints",
    "pointsman_picker_draining_requests",
    "pointsman_picker_slow_start_endpoints",
    "pointsman_picker_endpoints",
    "pointsman_picker_inflight_requests",
    "pointsman_picker_inflight_tokens",
    "pointsman_picker_observe_responses_ratio",
    "pointsman_picker_peers",
    "pointsman_picker_prefix_peers",
    "pointsman_picker_queue_oldest_seconds",
    "pointsman_picker_queue_requests",
    "pointsman_picker_queue_tokens",
    "pointsman_picker_worker_answered",
    "pointsman_picker_worker_connections",
    "pointsman_picker_worker_ready",
    "pointsman_picker_view_differs_seconds",
    "pointsman_view_differs_seconds",
    "pointsman_view_age_seconds",
    "pointsman_view_source_age_seconds",
    "process_open_fds",
    "python_info",
}
"""Of what all workers know alike, ages, shares, and what is the same everywhere: a new gauge is one of these, or else
one of `SUM` or `MIN`."""


def one(kind: str, name: str, series: str, value: str) -> Page:
    return parse(f"# HELP {name} What it is\n# TYPE {name} {kind}\n{series} {value}\n")


@pytest.mark.parametrize(("kind", "name", "series", "first", "second", "value"), JOINED)
def test_a_family_is_joined_by_its_meaning(
    kind: str, name: str, series: str, first: str, second: str, value: float
) -> None:
    page = joined([one(kind, name, series, first), one(kind, name, series, second)])
    assert page[name].values == {series: value}


def test_what_one_worker_has_alone_is_on_the_page() -> None:
    first, second = one("gauge", "up", 'up{of="a b"}', "1.0"), one("gauge", "up", 'up{of="c"}', "0.0")
    assert joined([first, second])["up"].values == {'up{of="a b"}': 1, 'up{of="c"}': 0}


async def test_a_page_survives_being_joined_alone() -> None:
    """Also one of a family in several pieces."""
    registry = CollectorRegistry()
    large = Gauge("large", 'Has "labels"\nand lines', ["of"], registry=registry)
    for number in range(2 * SLICE):
        large.labels(f'a "{number}"\n }} \r\x0b\x0c\x1c\x85\u2028\u2029 b').set(number / 7)
    Counter("requests", "Requests", registry=registry).inc(3)
    Histogram("seconds", "Seconds", registry=registry).observe(0.3)
    Info("build", "Build", registry=registry).info({"version": "1"})
    page = b"".join([piece async for piece in exposition(registry)]).decode()
    again = "".join(text(family) for family in joined([parse(page)]).values())
    assert list(text_string_to_metric_families(again)) == list(text_string_to_metric_families(page))


def counter(value: int, name: str = "picks_total") -> Page:
    return one("counter", name, name, f"{value}.0")


class Scrapes:
    """What a supervisor does with the pages of its workers."""

    def __init__(self) -> None:
        self.counts = Counts()

    def scrape(self, **pages: Page) -> dict[str, float]:
        for worker, page in pages.items():
            self.counts.update(worker, page)
        deque(self.counts.pruning(), maxlen=0)
        total = joined([*pages.values(), *self.counts.missing(pages)])
        return {series: value for family in total.values() for series, value in family.values.items()}


def test_a_worker_without_an_answer_counts_as_it_last_did() -> None:
    scrapes = Scrapes()
    scrapes.scrape(a=counter(5), b=counter(3))
    assert scrapes.scrape(a=counter(6)) == {"picks_total": 9}
    assert scrapes.scrape(a=counter(6), b=counter(4)) == {"picks_total": 10}


def test_the_counts_of_ended_workers_stay() -> None:
    scrapes = Scrapes()
    scrapes.scrape(a=counter(5), b=counter(3))
    for _ in range(2):
        scrapes.counts.ended("b")
        assert scrapes.scrape(a=counter(6)) == {"picks_total": 9}
    assert scrapes.scrape(a=counter(6), b=counter(1)) == {"picks_total": 10}
    scrapes.counts.ended("b")
    assert scrapes.scrape(a=counter(6), b=counter(0)) == {"picks_total": 10}


def test_a_series_ends_when_no_worker_has_it_any_more() -> None:
    scrapes = Scrapes()
    scrapes.scrape(a=counter(5), b=counter(3) | counter(2, "gone_total"))
    scrapes.counts.ended("b")
    assert scrapes.scrape(a=counter(5) | one("counter", "gone_total", "gone_total{of='x'}", "1.0")) == {
        "picks_total": 8,
        "gone_total{of='x'}": 1,
    }
    assert scrapes.scrape(a=counter(5) | counter(0, "gone_total")) == {"picks_total": 8, "gone_total": 0}


def test_the_gauges_of_a_worker_without_an_answer_are_left_out() -> None:
    scrapes = Scrapes()
    name = "pointsman_ext_proc_open_streams"
    scrapes.scrape(a=one("gauge", name, name, "5.0"), b=one("gauge", name, name, "3.0"))
    assert scrapes.scrape(a=one("gauge", name, name, "5.0")) == {name: 5}


def gauges() -> Iterator[str]:
    """The names of a picker's gauges, and of its supervisor's."""
    for service in (PickerService(PickerSettings()), Supervisor(PickerSettings(workers=2))):
        for family in service.registry.collect():
            if family.type in ("gauge", "info", "unknown"):
                yield family.name + ("_info" if family.type == "info" else "")


async def test_how_gauges_are_joined_is_decided_for_each() -> None:
    assert set(gauges()) == SUM | MIN | MAX
    assert not SUM & MIN | MIN & MAX | MAX & SUM


def test_large_pages_are_read_joined_and_pruned_in_steps() -> None:
    number = 5 * STEP
    series = "".join(f'picks_total{{of="{at}"}} 1.0\n' for at in range(number))
    text = f"# HELP picks_total What it is\n# TYPE picks_total counter\n{series}".encode()
    pages: list[Page] = [{}, {}]
    total: Page = {}
    counts = Counts()
    for page in pages:
        assert len(list(parsing(text, page))) == 5
    assert len(list(joining(pages, total))) == 10
    assert set(total["picks_total"].values.values()) == {2.0}
    for worker, page in zip("ab", pages, strict=True):
        counts.update(worker, page)
    counts.ended("a")
    assert len(list(counts.pruning())) == 10
    assert joined(counts.missing(["b"])) == pages[0]
