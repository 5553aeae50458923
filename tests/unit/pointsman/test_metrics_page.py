"""docs/metrics.md has every metric that the tiers serve, with the labels that its series have."""

import re

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, Info, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from pointsman.metrics_page import LIBRARY, MetricFamily, described, metrics_page, registries


class Late(Collector):
    """Has a family without a series yet."""

    def collect(self) -> list[Metric]:
        return [GaugeMetricFamily("late", "Comes later", labels=["pod"])]


def test_a_metric_is_described_before_it_has_any_series() -> None:
    registry = CollectorRegistry()
    Counter("things", "Things | stuff", ["kind", "size"], registry=registry)
    Histogram("took_seconds", "What it took", registry=registry)
    Info("build", "The program", registry=registry).info({"version": "1"})
    registry.register(Late())
    assert list(described(registry)) == [
        MetricFamily("things_total", "counter", ("kind", "size"), "Things | stuff"),
        MetricFamily("took_seconds", "histogram", (), "What it took"),
        MetricFamily("build_info", "info", ("version",), "The program"),
        MetricFamily("late", "gauge", ("pod",), "Comes later"),
    ]


@pytest.mark.parametrize("tier", ["watcher", "collector", "picker"])
def test_every_series_that_a_tier_serves_is_on_the_page_with_its_labels(tier: str) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| \w+ \| (.*?) \|", metrics_page(), flags=re.MULTILINE))
    served = generate_latest(registries()[tier]).decode()
    seen = 0
    for family in text_string_to_metric_families(served):
        for sample in family.samples:
            if sample.name.startswith(LIBRARY):
                continue
            seen += 1
            name = re.sub(r"_(bucket|sum|count|created)$", "", sample.name)
            row = rows.get(name, rows.get(f"{name}_total"))
            assert row is not None, f"{sample.name} isn't on the page"
            assert set(re.findall(r"`(\w+)`", row)) == sample.labels.keys() - {"le"}, sample.name
    assert seen > 10


def test_a_bar_in_a_meaning_doesnt_break_the_table() -> None:
    assert all(line.count(" | ") == 3 for line in metrics_page().splitlines() if line.startswith("| `"))
