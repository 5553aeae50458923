"""From pages to a number, page after page."""

import math
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest

from services.collector.page import evaluator as page_evaluator
from services.collector.page.evaluator import (
    MAX_GROUPS,
    MAX_SERIES,
    SAMPLES,
    QueryEvaluator,
    histogram_quantile,
    upper_bound,
)
from services.collector.page.query import QueryParameters
from services.collector.page.scan import scan
from services.collector.page.selection import MAX_ALL_LABELS_BYTES, MAX_LABELS_BYTES, Outcome
from services.collector.page.spec import parse_spec
from shared.config.decode import decode
from shared.config.problems import Problems


def evaluator(name: str, **given: Any) -> QueryEvaluator:
    problems = Problems()
    parameters = decode(given, QueryParameters, "", problems)
    assert isinstance(parameters, QueryParameters), problems.errors
    spec = parse_spec(name)
    assert spec is not None
    return QueryEvaluator(parameters.query(spec, "metricName"))


def page(query_evaluator: QueryEvaluator, text: str, at: float) -> float | None:
    """The value after a page."""
    for choice in query_evaluator.fallbacks:
        choice.begin()
        while (selector := choice.next()) is not None:
            selector.clear()
            scan(text.encode(), selector.name, [selector])
    return query_evaluator.evaluate(at)


def read(query_evaluator: QueryEvaluator, texts: Iterable[str], every: float = 1.0) -> list[float | None]:
    """The value after each of the pages, `every` seconds apart."""
    return [page(query_evaluator, text, index * every) for index, text in enumerate(texts)]


TWO = 'm{i="1"} 3 5\nm{i="2"} 4\n'


@pytest.mark.parametrize(
    ("aggregation", "value"), [("newest", 3.0), ("sum", 7.0), ("max", 4.0), ("min", 3.0), ("mean", 3.5)]
)
def test_values_are_aggregated_over_the_series(aggregation: str, value: float) -> None:
    assert read(evaluator("m", aggregation=aggregation), [TWO]) == [value]
    if aggregation == "sum":
        newest = 'm{i="1"} 3 5\nm{i="1"} 9 6\nm{i="1"} 8 6\nm{i="2"} 4\n'
        assert read(evaluator("m", aggregation="sum"), [newest]) == [13.0], "samples of one series in a row are one"


@pytest.mark.parametrize("aggregation", ["sum", "max", "min", "mean"])
def test_a_series_that_is_no_number_makes_the_result_none(aggregation: str) -> None:
    each = evaluator("m", aggregation=aggregation)
    assert read(each, [TWO + 'm{i="3"} NaN\n']) == [None]
    assert each.outcome is Outcome.INVALID


PAIR = ['c{r="a"} 0\nc{r="b"} 0\n', 'c{r="a"} 3\nc{r="b"} 6\n']


@pytest.mark.parametrize(
    ("given", "pages", "rates"),
    [
        ({}, ["c 5\n", "c 7\n", "c 13\n"], [None, 2.0, 4.0]),
        ({"window": "2s"}, [f"c {n}\n" for n in (0, 10, 20, 20, 20, 20)], [None, 10.0, 10.0, 5.0, 0.0, 0.0]),
        ({}, ["c 100\n", "c 102\n", "c 4\n"], [None, 2.0, 3.0]),
        ({}, ['c{r="a"} 7\n', 'c{r="a"} 7\nc{r="b"} 3\n'], [None, 3.0]),
        ({}, ["", "c 3\n"], [None, 3.0]),
        ({}, ["c 100\n", "", "c 104\n"], [None, None, 2.0]),
        ({}, PAIR, [None, 9.0]),
        ({"aggregation": "max"}, PAIR, [None, 6.0]),
        ({"aggregation": "min"}, PAIR, [None, 3.0]),
        ({"aggregation": "mean"}, PAIR, [None, 4.5]),
    ],
    ids=[
        "the increase per second",
        "one window",
        "a counter starts again, from 0",
        "a series appears, from 0",
        "the metric appears, from 0",
        "a series that was away goes on",
        "sum by default",
        "max",
        "min",
        "mean",
    ],
)
def test_rates(given: dict[str, Any], pages: list[str], rates: list[float | None]) -> None:
    assert read(evaluator("c", function="rate", **given), pages) == rates


def test_only_series_with_the_labels_are_counted() -> None:
    assert read(evaluator("c{r=b}", function="rate"), PAIR)[-1] == 6.0


def histogram(total: float, count: float) -> str:
    return f"h_sum {total}\nh_count {count}\n"


SERIES = 'h_sum{e="0"} %d\nh_count{e="0"} %d\nh_sum{e="1"} %d\nh_count{e="1"} %d\n'
IDLE = [(1, 1), (5, 2), (5, 2), (5, 2), (5, 2), (8, 3)]


@pytest.mark.parametrize(
    ("given", "observed", "means"),
    [
        ({"window": "2s"}, [(50, 10), (54, 12), (64, 13), (64, 13)], [None, 2.0, pytest.approx(14 / 3), 10.0]),
        ({"window": "2s"}, IDLE, [None, 4.0, 4.0, None, None, 3.0]),
        ({"window": "2s", "emptyValue": 0.1}, IDLE, [0.1, 4.0, 4.0, 0.1, 0.1, 3.0]),
        ({}, [(0, 1), (-6, 3)], [None, -3.0]),
        ({}, [(0, 0), (0, 0)], [None, None]),
        ({"emptyValue": 0.1}, [(), (0, 0), (3, 1), (3, 1), (0, 0), (7, 1)], [0.1, 0.1, 3.0, 3.0, 0.1, 7.0]),
        ({"emptyValue": 0.1}, [(500, 100), (500, 100)], [0.1, 0.1]),
    ],
    ids=[
        "sum over count of the window",
        "without observations it ages",
        "without observations the empty value holds",
        "a sum of negative observations falls without a restart",
        "nothing was observed",
        "the empty value holds before the first observation and after a restart",
        "what was observed before the collector came isn't counted",
    ],
)
def test_means(given: dict[str, Any], observed: list[tuple[float, ...]], means: list[float | None]) -> None:
    entry = evaluator("h", function="mean", **given)
    assert read(entry, [histogram(*each) if each else "" for each in observed]) == means
    assert (entry.outcome is Outcome.UNOBSERVED) is (means[-1] in (None, 0.1))


def test_means_pool_the_observations_of_all_series() -> None:
    assert read(evaluator("h", function="mean"), [SERIES % (0, 0, 0, 0), SERIES % (1, 1, 9, 3)])[-1] == 2.5


def test_series_that_disappear_leave_their_value_to_age_and_are_forgotten_after_a_window() -> None:
    each = evaluator("m", emptyValue=0.0)
    texts = [("m 4\n", 0.0), ("", 1.0), ("", 9.9), ("", 10.0)]
    assert [page(each, text, at) for text, at in texts] == [4.0, None, None, 0.0]


def buckets(**counts: float) -> str:
    return "".join(
        f'h_bucket{{le="{bound.removeprefix("le").replace("_", ".")}"}} {n}\n' for bound, n in counts.items()
    )


@pytest.mark.parametrize(
    ("given", "pages", "values"),
    [
        (
            {"quantile": 0.5},
            [buckets(le1=5, le2=5, leInf=5), buckets(le1=6, le2=9, leInf=9)],
            [None, 1 + 1 / 3],
        ),
        (
            {"quantile": 0.5},
            [
                'h_bucket{e="0",le="1"} 0\nh_bucket{e="0",le="+Inf"} 0\n',
                "".join(f'h_bucket{{e="{e}",le="{le}"}} 2\n' for e in "01" for le in ("1", "+Inf")),
            ],
            [None, 0.5],
        ),
        (
            {"quantile": 1.0, "window": "1s", "emptyValue": 0.5},
            [
                buckets(le1=0, le2=0, leInf=0),
                buckets(le1=0, le2=4, leInf=4),
                *[buckets(le1=4, le2=8, leInf=8)] * 2,
            ],
            [0.5, 2.0, 1.0, 0.5],
        ),
    ],
    ids=["interpolated within its bucket", "all series together", "one window back and no further"],
)
def test_quantiles(given: dict[str, Any], pages: list[str], values: list[float | None]) -> None:
    assert read(evaluator("h", function="quantile", **given), pages) == values


@pytest.mark.parametrize(
    ("share", "increases", "value"),
    [
        (0.5, {1.0: 10, 2.0: 20, math.inf: 20}, 1.0),
        (0.75, {1.0: 10, 2.0: 20, math.inf: 20}, 1.5),
        (0.25, {1.0: 10, 2.0: 20, math.inf: 20}, 0.5),
        (1.0, {1.0: 10, 2.0: 20, math.inf: 20}, 2.0),
        (0.0, {1.0: 10, 2.0: 20, math.inf: 20}, 0.0),
        (0.0, {1.0: 0, 2.0: 20, math.inf: 20}, 1.0),
        (0.99, {1.0: 10, 2.0: 20, math.inf: 40}, 2.0),  # beyond the last bound
        (0.1, {-1.0: 10, 2.0: 20, math.inf: 20}, -1.0),  # the lowest bucket has no lower end
        (0.5, {1.0: 10, 2.0: 9, math.inf: 20}, 1.0),  # a page that wasn't taken in one moment
        (0.5, {math.inf: 20}, None),
        (0.5, {1.0: 10}, None),
        (0.5, {1.0: 0, math.inf: 0}, None),
        (0.5, {}, None),
    ],
)
def test_quantiles_are_those_of_promqls_histogram_quantile(
    share: float, increases: dict[float, float], value: float | None
) -> None:
    assert histogram_quantile(share, increases) == value


@pytest.mark.parametrize("function", ["rate", "mean"])
def test_counters_that_are_no_numbers_are_passed_over(function: str) -> None:
    each = evaluator("h" if function == "mean" else "h_count", function=function)
    good, bad = histogram(1, 1), "h_sum NaN\nh_count NaN\n"
    assert read(each, [good, bad, histogram(5, 3)]) == [None, None, 2.0 if function == "mean" else 1.0]


@pytest.mark.parametrize(
    ("given", "most"),
    [({"function": "rate"}, MAX_SERIES), ({"function": "rate", "aggregation": "max"}, MAX_GROUPS)],
)
def test_more_series_than_are_kept_make_no_value(given: dict[str, Any], most: int) -> None:
    each = evaluator("c", **given)
    text = "".join(f'c{{i="{index}"}} 1\n' for index in range(most + 1))
    page(each, text, 0.0)
    assert page(each, text, 1.0) is None
    assert each.outcome is Outcome.INVALID


def test_more_labels_than_are_kept_make_no_value() -> None:
    """However few series they are of."""
    count = MAX_ALL_LABELS_BYTES // 4000
    for more, outcome in ((-1, Outcome.UNOBSERVED), (1, Outcome.INVALID)):
        each = evaluator("c", function="rate")
        page(each, "".join(f'c{{i="{index:03}{"x" * 3990}"}} 1\n' for index in range(count + more)), 0.0)
        assert each.outcome is outcome


@pytest.mark.parametrize(
    ("labels", "bound"),
    [
        (b'le="0.5"', 0.5),
        (b'a="x",le="+Inf",b="y"', math.inf),
        (b' a = "x" , le = "2" ', 2.0),
        (b'a="le=",b="\\",le=\\"7\\"",le="3"', 3.0),
        (b'file="1",le="4"', 4.0),
        (b'le="NaN"', None),
        (b'le="x"', None),
        (b'le="\\n"', None),
        (b'a="1"', None),
        (b"", None),
        (b"%s" % b",".join(b'a%d=""' % number for number in range(600)), None),
    ],
)
def test_a_buckets_bound_is_its_label_le(labels: bytes, bound: float | None) -> None:
    assert upper_bound(labels) == bound


def test_a_buckets_bound_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def parsing(labels: bytes) -> float | None:
        parsed.append(labels)
        return upper_bound(labels)

    monkeypatch.setattr(page_evaluator, "upper_bound", parsing)
    each = evaluator("h", function="quantile", quantile=0.5)
    for at in range(10):
        page(each, "".join(f'h_bucket{{le="{bound}"}} {at * bound}\n' for bound in (1, 2)), float(at))
    assert sorted(parsed) == [b'le="1"', b'le="2"']


def test_a_buckets_bound_is_read_once_for_several_queries() -> None:
    upper_bound.cache_clear()
    several = [evaluator("h", function="quantile", quantile=quantile) for quantile in (0.5, 0.9, 0.99)]
    for at in range(2):
        for each in several:
            page(each, "".join(f'h_bucket{{le="{bound}"}} {at * bound}\n' for bound in (1, 2)), float(at))
    assert upper_bound.cache_info().misses == 2


@pytest.mark.parametrize(
    "given", [{"function": "rate", "aggregation": "max"}, {"function": "quantile", "quantile": 0.5}]
)
def test_series_that_change_with_every_page_fill_no_memory(given: dict[str, Any]) -> None:
    each = evaluator("c", **given)
    name = "c_bucket" if "quantile" in given else "c"
    for at in range(100):
        page(each, "".join(f'{name}{{le="{at * 100 + index}"}} {at}\n' for index in range(100)), float(at))
    window = each._evaluation._window  # type: ignore[attr-defined]
    assert window.groups <= MAX_GROUPS + 100
    assert len(each._evaluation._baselines.values) <= 2 * MAX_SERIES  # type: ignore[attr-defined]
    assert len(window._samples) <= SAMPLES + 2


def test_a_rate_holds_however_often_the_endpoint_is_asked() -> None:
    each = evaluator("c", function="rate", window="10s")
    assert read(each, (f"c {index}\n" for index in range(5000)), every=0.01)[-1] == pytest.approx(100.0)


@pytest.mark.parametrize(
    "given", [{"function": "quantile", "quantile": 0.5}, {"function": "mean"}, {"function": "rate"}]
)
def test_series_with_other_labels_on_each_page_take_a_limited_memory(given: dict[str, Any]) -> None:
    suffixes = {"quantile": ["_bucket"], "mean": ["_sum", "_count"], "rate": [""]}[given["function"]]
    query = evaluator("m", **given)
    shared = MAX_SERIES * MAX_LABELS_BYTES if given["function"] == "quantile" else 0
    upper_bound.cache_clear()
    tracemalloc.start()
    try:
        most = 0
        for number in range(20):
            series = [f'{{le="{each}",x="{number}-{each}-{"x" * 4000}"}} {each}\n' for each in range(120)]
            page(query, "".join(f"m{suffix}{each}" for suffix in suffixes for each in series), float(number))
            most = max(most, tracemalloc.get_traced_memory()[0])
        assert most < 5 * MAX_ALL_LABELS_BYTES + shared
    finally:
        tracemalloc.stop()
