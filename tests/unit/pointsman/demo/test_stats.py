"""The arithmetic of what is shown, against values worked out by hand."""

import math

import pytest

from pointsman.demo.stats import Buckets, Climb, Distribution, Page, Recent, total

PAGE = """\
# HELP picks_total How often
# TYPE picks_total counter
picks_total{endpoint="default/a"} 7.0
picks_total{endpoint="default/b"} 3.0
# HELP seconds How long
# TYPE seconds histogram
seconds_bucket{le="0.001",path="x"} 2.0
seconds_bucket{le="0.002",path="x"} 4.0
seconds_bucket{le="+Inf",path="x"} 5.0
seconds_count{path="x"} 5.0
seconds_sum{path="x"} 0.1
seconds_bucket{le="0.001",path="y"} 0.0
seconds_bucket{le="0.002",path="y"} 1.0
seconds_bucket{le="+Inf",path="y"} 1.0
seconds_count{path="y"} 1.0
seconds_sum{path="y"} 0.0015
"""


def test_a_distribution_knows_its_quantiles_to_two_percent() -> None:
    times = Distribution()
    assert times.quantile(0.5) is None
    for millisecond in range(1, 1001):
        times.add(millisecond / 1000)
    for share in (0.01, 0.5, 0.99, 1.0):
        assert times.quantile(share) == pytest.approx(share, rel=0.021)
    assert times.count == 1000
    times = Distribution()
    times.add(0.0)
    assert times.quantile(1.0) == pytest.approx(1e-9, rel=0.021)


def test_recent_forgets_what_is_older_than_its_span() -> None:
    recent = Recent(10.0)
    for second in range(20):
        recent.add(float(second), now=float(second))
    assert recent.values(now=20.0) == [float(second) for second in range(10, 20)]
    assert recent.quantile(0.5, now=20.0) == 14.0
    assert recent.quantile(1.0, now=20.0) == 19.0
    assert recent.quantile(0.5, now=100.0) is None
    few = Recent(10.0, limit=3)
    for number in range(9):
        few.add(number, now=0.0)
    assert few.values(now=0.0) == [6, 7, 8]


def test_a_climb_goes_on_when_its_counter_begins_again() -> None:
    climb = Climb()
    assert [climb.read(value) for value in (5, 5, 9, 2, 3)] == [5, 0, 4, 2, 1]
    assert climb.total == 12


def test_a_page_gives_values_by_a_label() -> None:
    page = Page(PAGE)
    assert page.values("picks_total", "endpoint") == {"default/a": 7, "default/b": 3}
    assert page.values("nothing", "endpoint") == {}


def test_a_page_adds_up_the_series_of_a_histogram() -> None:
    assert Page(PAGE).buckets("seconds") == Buckets(((0.001, 2), (0.002, 5), (math.inf, 6)))
    assert Page(PAGE).buckets("nothing").count == 0


SPREAD = Buckets(((1.0, 10), (2.0, 30), (4.0, 40), (math.inf, 40)))


@pytest.mark.parametrize(
    ("buckets", "share", "quantile"),
    [
        (Buckets(), 0.0, None),
        (Buckets(((0.1, 0), (math.inf, 0))), 1.0, None),
        (SPREAD, 0.25, 1.0),
        (SPREAD, 0.5, 1.5),
        (SPREAD, 0.875, 3.0),
        (Buckets(((1.0, 1), (2.0, 1), (math.inf, 4))), 0.9, 2.0),
        (Buckets(((1.0, 0), (2.0, 0), (4.0, 4), (math.inf, 4))), 0.5, 3.0),
    ],
    ids=["empty", "no observations", "a bound", "linear", "linear, later", "beyond the last bound", "empty buckets"],
)
def test_a_histograms_quantile(buckets: Buckets, share: float, quantile: float | None) -> None:
    assert buckets.quantile(share) == (None if quantile is None else pytest.approx(quantile))


def test_what_came_since_an_earlier_reading() -> None:
    before = Buckets(((1.0, 10), (math.inf, 12)))
    now = Buckets(((1.0, 15), (math.inf, 20)))
    assert now.since(before) == Buckets(((1.0, 5), (math.inf, 8)))
    assert now.since(Buckets()) == now
    anew = Buckets(((1.0, 2), (math.inf, 14)))
    assert anew.since(before) == anew, "the process began again"


def test_histograms_add_up() -> None:
    one = Buckets(((1.0, 1), (math.inf, 2)))
    assert total([Buckets(), one, one]) == Buckets(((1.0, 2), (math.inf, 4)))
    assert total([]).count == 0
