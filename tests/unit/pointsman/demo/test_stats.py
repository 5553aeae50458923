"""The arithmetic of what is shown, against values worked out by hand."""

import pytest

from pointsman.demo.stats import Counters, Samples, histogram_quantile, observations

LABELS = {"picks_total": "endpoint", "seconds_bucket": "le", "none": ""}


def page(start: float, picks: float, first: float, second: float) -> str:
    return f"""\
# TYPE process_start_time_seconds gauge
process_start_time_seconds {start}
# HELP picks_total How often
# TYPE picks_total counter
picks_total{{endpoint="default/a"}} {picks}
picks_total{{endpoint="default/b"}} 3.0
# HELP seconds How long
# TYPE seconds histogram
seconds_bucket{{le="0.001",path="x"}} {first}
seconds_bucket{{le="+Inf",path="x"}} {second}
seconds_count{{path="x"}} {second}
seconds_sum{{path="x"}} 0.1
seconds_bucket{{le="0.001",path="y"}} 0.0
seconds_bucket{{le="+Inf",path="y"}} 1.0
seconds_count{{path="y"}} 1.0
seconds_sum{{path="y"}} 0.0015
"""


def test_samples_have_their_times() -> None:
    samples = Samples()
    assert samples.quantile(0.5) is None
    for second in range(20):
        samples.add(float(second), now=float(second))
    assert samples.values(since=10.0) == [float(second) for second in range(19, 9, -1)]
    assert (samples.quantile(0.5), samples.quantile(0.5, since=10.0), samples.quantile(1.0)) == (9.0, 14.0, 19.0)
    assert samples.quantile(0.5, since=100.0) is None
    few = Samples(limit=3)
    for number in range(9):
        few.add(number, now=0.0)
    assert few.values() == [8, 7, 6]


def test_counters_are_summed_over_other_labels_and_over_restarts() -> None:
    counters = Counters(LABELS)
    counters.read(page(1.0, 7, 2, 5))
    assert counters.by_label("picks_total") == {"default/a": 7, "default/b": 3}
    assert counters.by_label("seconds_bucket") == {"0.001": 2, "+Inf": 6}
    assert counters.total("none") == 0
    counters.read(page(1.0, 9, 2, 6))
    assert counters.total("picks_total") == 12
    counters.read(page(2.0, 10, 1, 1))
    assert counters.by_label("picks_total") == {"default/a": 19, "default/b": 6}
    assert counters.by_label("seconds_bucket") == {"0.001": 3, "+Inf": 9}


SPREAD = {"1.0": 10.0, "2.0": 30.0, "4.0": 40.0, "+Inf": 40.0}


@pytest.mark.parametrize(
    ("buckets", "share", "quantile"),
    [
        ({}, 0.0, None),
        ({"0.1": 0.0, "+Inf": 0.0}, 1.0, None),
        (SPREAD, 0.25, 1.0),
        (SPREAD, 0.5, 1.5),
        (SPREAD, 0.875, 3.0),
        ({"1.0": 1.0, "2.0": 1.0, "+Inf": 4.0}, 0.9, 2.0),
        ({"10.0": 4.0, "2.0": 0.0, "6.0": 4.0, "+Inf": 4.0}, 0.5, 4.0),
    ],
    ids=["empty", "no observations", "a bound", "linear", "linear, later", "beyond the last bound", "empty buckets"],
)
def test_a_histograms_quantile(buckets: dict[str, float], share: float, quantile: float | None) -> None:
    assert histogram_quantile(buckets, share) == (None if quantile is None else pytest.approx(quantile))
    assert observations(buckets) == buckets.get("+Inf", 0)
