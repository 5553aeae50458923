"""Which series of a metric is read."""

import pytest

from services.collector.page.scan import scan
from services.collector.page.selection import Greatest, Max, Mean, MetricFallback, Min, Newest, Outcome, Selector, Sum
from services.collector.page.spec import MetricSpec, parse_spec


def spec(text: str) -> MetricSpec:
    parsed = parse_spec(text)
    assert parsed is not None
    return parsed


def select(selector: Selector, page: str) -> float | None:
    selector.clear()
    scan(page.encode(), selector.name, [selector])
    return selector.value if selector.found else None


@pytest.mark.parametrize(
    ("page", "value"),
    [
        ('m{i="1"} 1\nm{i="2"} 2\n', 1.0),
        ('m{i="1"} 1 100\nm{i="2"} 2 200\nm{i="3"} 3 150\n', 2.0),
        ('m{i="1"} 1 200\nm{i="2"} 2 200\n', 1.0),
        ('m{i="1"} 1\nm{i="2"} 2 1\n', 2.0),
        ('m{i="1"} 1\nm{i="2"} 2 0\n', 1.0),
        ('m{i="1"} 1 -5\nm{i="2"} 2 -1\n', None),
        ('m{i="1"} 1 -5\nm{i="2"} 2\n', 2.0),
        ("m 1 NaN\nm 2\n", 2.0),
        ("n 1\n", None),
    ],
)
def test_the_newest_series_has_the_greatest_timestamp_and_ties_keep_the_first(page: str, value: float | None) -> None:
    assert select(Newest(spec("m")), page) == value


@pytest.mark.parametrize(
    ("page", "value"),
    [
        ('m{i="1"} 1\nm{i="2"} 3\nm{i="3"} 2\n', 3.0),
        ("m 0\n", 0.0),
        ("m -1\n", None),
        ("m NaN\nm 1\n", 1.0),
    ],
)
def test_the_greatest_series_has_the_greatest_value_and_negative_ones_never_win(page: str, value: float | None) -> None:
    assert select(Greatest(spec("m")), page) == value


def test_of_two_series_with_the_greatest_value_the_first_counts() -> None:
    selector = Greatest(spec("m"))
    assert select(selector, 'm{i="1"} 3\nm{i="2"} 3\n') == 3.0
    assert selector.labels == {"i": "1"}


def test_only_series_with_the_labels_of_the_specification_take_part() -> None:
    page = 'm{a="x",b="1"} 1 900\nm{a="v",b="2"} 2\nm{b="3",a="v"} 3 5\n'
    assert select(Newest(spec("m{a=v}")), page) == 3.0
    assert select(Newest(spec("m{a=v,b=2}")), page) == 2.0
    assert select(Newest(spec("m{a=w}")), page) is None
    for kind in (Greatest, Sum, Mean, Max, Min):
        assert select(kind(spec("m{a=v,b=2}")), page) == 2.0


def test_a_selector_tells_an_absent_metric_from_one_without_the_series() -> None:
    selector = Newest(spec("m{a=v}"))
    outcomes = []
    for page in ("n 1\n", "m 1\n", 'm{a="v"} 1\n'):
        select(selector, page)
        outcomes.append(selector.outcome)
    assert outcomes == [Outcome.ABSENT, Outcome.NO_SERIES, Outcome.FOUND]


def read(choice: MetricFallback, page: str) -> tuple[float | None, list[str]]:
    """The value, and the metrics that were looked for."""
    looked: list[str] = []
    choice.begin()
    while (selector := choice.next()) is not None:
        looked.append(str(selector.spec))
        selector.clear()
        scan(page.encode(), selector.name, [selector])
    taken = choice.select()
    return (None if taken is None else taken.value), looked


def test_a_choice_takes_the_first_name_that_is_there_and_begins_with_the_one_before() -> None:
    choice = MetricFallback([Newest(spec("new")), Newest(spec("old"))])
    pages = ("old 1\nnew 2\n", "old 1\n", "old 2\n", "new 5\n", "new 6\n", "other 1\n")
    assert [read(choice, page) for page in pages] == [
        (2.0, ["new"]),
        (1.0, ["new", "old"]),
        (2.0, ["old"]),
        (5.0, ["old", "new"]),
        (6.0, ["new"]),
        (None, ["new", "old"]),
    ]
    assert (choice.outcome(), str(choice)) == (Outcome.ABSENT, "new or old")
