"""The statistics of the demo: samples with their times, and counters read from `/metrics`. All of it is bounded."""

import math
from collections import deque
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from services.collector.page.evaluator import histogram_quantile as quantile_of

START_TIME = "process_start_time_seconds"


class Samples:
    """The latest values, at most `limit` of them, with their times."""

    def __init__(self, limit: int = 100_000) -> None:
        self._values: deque[tuple[float, float]] = deque(maxlen=limit)

    def add(self, value: float, now: float) -> None:
        self._values.append((now, value))

    def values(self, since: float = -math.inf) -> list[float]:
        """Those added since that time, the newest first."""
        found = []
        for at, value in reversed(self._values):
            if at < since:
                break
            found.append(value)
        return found

    def quantile(self, share: float, since: float = -math.inf) -> float | None:
        """The value that `share` (0 to 1) of the values don't exceed; None without values."""
        values = sorted(self.values(since))
        return values[max(0, math.ceil(share * len(values)) - 1)] if values else None

    def __repr__(self) -> str:
        return f"<Samples {len(self._values)}, median {self.quantile(0.5)}>"


class Counters:
    """Counters on the `/metrics` page of a process, added up over its restarts.

    `labels` maps each sample name to the label by which its values are kept; the other labels are summed over.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._totals: dict[str, dict[str, float]] = {name: {} for name in labels}
        self._labels = labels
        self._last = self._totals
        self._start_time = 0.0

    def read(self, text: str) -> None:
        """Take in a page. Raises ValueError if it isn't in Prometheus's text format."""
        page: dict[str, dict[str, float]] = {name: {} for name in self._labels}
        start_time = 0.0
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == START_TIME:
                    start_time = sample.value
                elif (label := self._labels.get(sample.name)) is not None:
                    key = sample.labels.get(label, "")
                    page[sample.name][key] = page[sample.name].get(key, 0.0) + sample.value
        restarted = start_time != self._start_time
        for name, values in page.items():
            total, last = self._totals[name], {} if restarted else self._last[name]
            for key, value in values.items():
                total[key] = total.get(key, 0.0) + value - last.get(key, 0.0)
        self._last, self._start_time = page, start_time

    def total(self, name: str) -> float:
        return sum(self._totals[name].values())

    def by_label(self, name: str) -> dict[str, float]:
        """The totals by the value of the label."""
        return dict(self._totals[name])

    def __repr__(self) -> str:
        return f"<Counters {', '.join(f'{name} {self.total(name):g}' for name in self._totals)}>"


Buckets = Mapping[str, float]
"""A Prometheus histogram: cumulative counts by upper bound, as in the label `le`."""


def observations(buckets: Buckets) -> int:
    return int(buckets.get("+Inf", 0))


def histogram_quantile(buckets: Buckets, share: float) -> float | None:
    """As PromQL's; None without observations."""
    return quantile_of(share, {float(bound): count for bound, count in buckets.items()})
