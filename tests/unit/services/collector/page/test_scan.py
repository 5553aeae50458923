"""The scan finds what a whole-page parser finds, and nothing on a page can hurt it."""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from services.collector.page.scan import parse_labels, scan, steps
from services.collector.page.selection import Greatest, Max, Mean, Min, Newest, Selector, Sum
from services.collector.page.spec import MetricSpec
from tests.unit.services.collector.pages import Everything, Sample, recorded_vllm_page, samples

EXAMPLES = int(os.environ.get("POINTSMAN_SCAN_EXAMPLES", "300"))
"""Generated pages; more by the environment: POINTSMAN_SCAN_EXAMPLES=10000."""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("m 1\n", ({}, 1.0, 0.0)),
        ("m 1", ({}, 1.0, 0.0)),
        ("m 1\r\n", ({}, 1.0, 0.0)),
        ("m\t1\n", ({}, 1.0, 0.0)),
        ("  m   1  \n", ({}, 1.0, 0.0)),
        ("m{} 1\n", ({}, 1.0, 0.0)),
        ("m {} 1\n", ({}, 1.0, 0.0)),
        ('m{a="v"} 1\n', ({"a": "v"}, 1.0, 0.0)),
        ('m{a="v"}1\n', ({"a": "v"}, 1.0, 0.0)),
        ('m{a="v",} 1\n', ({"a": "v"}, 1.0, 0.0)),
        ('m{ a = "v" , b = "w" } 1\n', ({"a": "v", "b": "w"}, 1.0, 0.0)),
        ('m{a="v"} 1 1700000000000\n', ({"a": "v"}, 1.0, 1700000000000.0)),
        ("m 1 -5\n", ({}, 1.0, -5.0)),
        ("m 1 1700000000.5\n", ({}, 1.0, 1700000000.5)),
        ('m{a="x}{,= y"} 1\n', ({"a": "x}{,= y"}, 1.0, 0.0)),
        (r'm{a="q\" b\\ n\n t\t"} 1' + "\n", ({"a": 'q" b\\ n\n t\\t'}, 1.0, 0.0)),
        ('m{a="ä€"} 1\n', ({"a": "ä€"}, 1.0, 0.0)),
        ('m{a="v"} 5 # {trace_id="x"} 0.5 1.0\n', ({"a": "v"}, 5.0, 0.0)),
        ('m 5 1.5 # {trace_id="} 9"} 0.5 1.0\n', ({}, 5.0, 1.5)),
        ("m 1e3\n", ({}, 1000.0, 0.0)),
        ("m -0.5\n", ({}, -0.5, 0.0)),
        ("m +Inf\n", ({}, math.inf, 0.0)),
        ("m -Inf\n", ({}, -math.inf, 0.0)),
    ],
)
def test_a_sample_has_labels_a_value_and_perhaps_a_timestamp(
    line: str, expected: tuple[dict[str, str], float, float]
) -> None:
    assert samples(line.encode(), ["m"]) == [("m", *expected)]


def test_a_value_may_be_no_number() -> None:
    ((_, _, value, _),) = samples(b"m NaN\n", ["m"])
    assert math.isnan(value)


@pytest.mark.parametrize(
    "line",
    [
        "m",
        "m ",
        "m{",
        "m{}",
        "m{a} 1",
        "m{a=v} 1",
        'm{a="v} 1',
        'm{a="v"',
        'm{a="v"} ',
        'm{a="v" b="w"} 1',
        'm{a="v"}} 1',
        "m one",
        "m 1_000",
        "m 1 later",
        "m 1 2 3",
        "m 0x1p-2",
        "# m 1",
        "# HELP m is a metric 1",
        "# TYPE m gauge",
        "other m 1",
        'other{m="m 1"} 1',
        "mm 1",
        "m:m 1",
        "xm 1",
        "m_total 1",
    ],
)
def test_a_line_that_is_no_sample_of_the_metric_costs_only_itself(line: str) -> None:
    page = f"m 7\n{line}\nm 8\n".encode()
    assert [value for _, _, value, _ in samples(page, ["m"])] == [7.0, 8.0]


def test_a_broken_last_line_leaves_the_others() -> None:
    assert samples(b'a 1\nb 2\nm{a="v', ["a", "b", "m"]) == [("a", {}, 1.0, 0.0), ("b", {}, 2.0, 0.0)]


def test_samples_come_in_the_order_of_the_page_wherever_they_stand() -> None:
    page = b'm{i="1"} 1\nn 5\nm{i="2"} 2\n\n\nm{i="3"} 3'
    assert [labels["i"] for _, labels, _, _ in samples(page, ["m"])] == ["1", "2", "3"]


def test_a_metric_that_is_another_ones_prefix_is_told_apart() -> None:
    page = b'vllm:num_requests_waiting_by_reason{reason="x"} 9\nvllm:num_requests_waiting 1\n'
    assert samples(page, ["vllm:num_requests_waiting"]) == [("vllm:num_requests_waiting", {}, 1.0, 0.0)]


def test_bytes_that_are_no_text_are_replaced_in_labels() -> None:
    assert samples(b'm{a="\xff\xfe"} 1\n', ["m"]) == [("m", {"a": "��"}, 1.0, 0.0)]


def test_sinks_of_one_metric_are_all_offered_its_samples() -> None:
    one, other = Everything(), Everything()
    assert scan(b"m 1\nm 2\n", b"m", [one, other]) == (0, 8, 8)
    assert one.samples == other.samples == [(b"", 1.0, 0.0), (b"", 2.0, 0.0)]


def test_the_steps_of_a_page_end_with_its_lines_and_are_all_of_it() -> None:
    page = b"".join(b"m %d\n" % number for number in range(1000)) + b"m " + b"9" * 300 + b"\nm 5"
    pieces = list(steps(page, 100))
    assert b"".join(page[start:end] for start, end in pieces) == page
    assert all(page[end - 1 : end] == b"\n" for _, end in pieces[:-1])
    assert all(end - start <= 310 for start, end in pieces)


def test_a_line_that_is_too_long_costs_only_itself() -> None:
    page = b'm 1\nm{a="' + b"x" * 500 + b'"} 2\nm 3\nm{a="' + b"x" * 500
    assert [page[start:end] for start, end in steps(page, 20, 100)] == [b"m 1\n", b"m 3\n"]


def test_a_scan_ends_after_as_many_lines_as_it_is_told_and_goes_on_there() -> None:
    page, sink = b"m 1\nm 2\nm m{} 1\nm 3\n", Everything()
    assert scan(page, b"m", [sink], most=2) == (0, 8, 8)
    assert scan(page, b"m", [sink], 8, most=1) == (-1, -1, 16)
    assert scan(page, b"m", [sink], 16, most=2) == (16, 20, 20)
    assert [value for _, value, _ in sink.samples] == [1.0, 2.0, 3.0]
    assert scan(page, b"n", [sink]) == (-1, -1, 20)
    assert scan(b"m 1\nm x y z", b"m", [sink], 4, most=1) == (-1, -1, 11)


def test_steps_find_what_one_scan_finds() -> None:
    page = b"".join(b'm{i="%d"} %d\n' % (number, number) for number in range(2000))
    sink = Everything()
    for start, end in steps(page, 128):
        scan(page, b"m", [sink], start, end)
    whole = Everything()
    scan(page, b"m", [whole])
    assert sink.samples == whole.samples
    assert len(whole.samples) == 2000


def parsed(page: str) -> dict[str, list[Sample]]:
    """Every sample by name, according to prometheus_client; timestamps in milliseconds, as on the page."""
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(page):
        for one in family.samples:
            moment = 0.0 if one.timestamp is None else float(one.timestamp) * 1000
            found.setdefault(one.name, []).append((one.name, dict(one.labels), float(one.value), moment))
    return found


def parsed_openmetrics(page: str) -> dict[str, list[Sample]]:
    """The same of an OpenMetrics page; timestamps in seconds. Raises ValueError for a page that isn't one."""
    found: dict[str, list[Sample]] = {}
    for family in openmetrics.text_string_to_metric_families(page):  # type: ignore[no-untyped-call]
        for one in family.samples:
            moment = 0.0 if one.timestamp is None else float(one.timestamp)
            found.setdefault(one.name, []).append((one.name, dict(one.labels), float(one.value), moment))
    return found


def same(ours: list[Sample], theirs: list[Sample]) -> bool:
    return len(ours) == len(theirs) and all(
        one[:2] == other[:2] and equal(one[2], other[2]) and math.isclose(one[3], other[3], rel_tol=1e-12)
        for one, other in zip(ours, theirs, strict=True)
    )


def equal(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and math.isnan(one) and math.isnan(other))


def points(series: Iterable[Sample]) -> list[Sample]:
    """Samples in a row with equal labels as one: the first of those with the greatest timestamp."""
    kept: list[Sample] = []
    for one in series:
        if kept and list(kept[-1][1].items()) == list(one[1].items()):
            if one[3] > kept[-1][3]:
                kept[-1] = one
        else:
            kept.append(one)
    return kept


def newest(series: Sequence[Sample]) -> float:
    best = max(moment for *_, moment in series)
    return next(value for _, _, value, moment in series if moment == best)


def first_greatest(numbers: Sequence[float]) -> float:
    best = numbers[0]
    for number in numbers[1:]:
        best = number if number > best or number != number else best
    return best


def expected(kind: type[Selector], series: Sequence[Sample]) -> float | None:
    """What a selector has to make of the samples that match."""
    if kind is Newest:
        fitting = [one for one in series if one[3] >= 0]
        return newest(fitting) if fitting else None
    if kind is Greatest:
        return max((one[2] for one in series if one[2] >= 0), default=None)
    numbers = [value for _, _, value, _ in points(series)]
    if not numbers:
        return None
    if kind in (Sum, Mean):
        total = reduce(add, numbers)
        return total / len(numbers) if kind is Mean else total
    if kind is Max:
        return first_greatest(numbers)
    return -first_greatest([-number for number in numbers])


def check_selectors(page: bytes, theirs: dict[str, list[Sample]]) -> None:
    """Every selector says of every metric, and of the series like each of its series, what the parser's samples say."""
    for name, series in theirs.items():
        filters = {(), *(tuple(sorted(labels.items())) for _, labels, _, _ in series)}
        for labels in filters:
            fitting = [one for one in series if all(one[1].get(key) == value for key, value in labels)]
            for kind in (Newest, Greatest, Sum, Mean, Max, Min):
                selector = kind(MetricSpec(name, labels))
                scan(page, selector.name, [selector])
                assert equal(selector.value if selector.found else None, expected(kind, fitting)), (kind, name, labels)


def test_the_recorded_page_has_the_values_that_prometheus_client_reads() -> None:
    page = recorded_vllm_page()
    expected = parsed(page.decode())
    assert len(expected) > 100
    for name, theirs in expected.items():
        assert same(samples(page, [name]), theirs), name
    check_selectors(page, expected)


NAMES = ("m", "m_total", "m:n", "vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason", "_x", "A")
PARTS = ("", "_bucket", "_sum", "_count")
label_values = st.text(st.characters(codec="utf-8", exclude_characters='\n\r\\"'), max_size=10) | st.sampled_from(
    [r"\\", r"\"", r"\n", r"\t", "}", "{", "#", " # ", "=", ",", r"a\"b\\", "m 1", "m{} 1", "} 1 # {a="]
)
numbers = st.one_of(
    st.floats().map(repr),
    st.integers(-(10**12), 10**12).map(str),
    st.sampled_from(["NaN", "nan", "+Inf", "-Inf", "inf", "Infinity", "1e5", "1E+5", "1e400", "0", "-0", "+7", "007"]),
    st.sampled_from([".5", "5.", "-.5e-3", "0.1000000000000000055511151231257827", "9" * 30, "4.9e-324", "1e-400"]),
)
KEYS = ("a", "b", "le", "quantile", "model_name")
BOUNDS = ("0.5", "1.0", "+Inf", "1e-05")


@dataclass(frozen=True)
class Style:
    """How a page is written."""

    before: str
    """Blanks before names."""
    inside: str
    """Blanks around what is between braces."""
    after: str
    separator: str
    comma: str
    """After the last label."""


styles = st.builds(
    Style,
    before=st.sampled_from(["", "", " ", "\t "]),
    inside=st.sampled_from(["", "", " ", "\t"]),
    after=st.sampled_from(["", "", " ", " \t"]),
    separator=st.sampled_from([" ", " ", "  "]),
    comma=st.sampled_from(["", ","]),
)


@st.composite
def label_sets(draw: st.DrawFn) -> dict[str, str]:
    keys = sorted(draw(st.sets(st.sampled_from(KEYS), max_size=3)))
    return {key: draw(st.sampled_from(BOUNDS) if key in ("le", "quantile") else label_values) for key in keys}


@st.composite
def lines(draw: st.DrawFn, style: Style) -> str:
    name = draw(st.sampled_from(NAMES))
    match draw(st.integers(0, 12)):
        case 0:
            return f"# HELP {name} {draw(label_values)}"
        case 1:
            return draw(st.sampled_from(["", style.before]))
        case 2:
            return f"# {draw(label_values)}"
        case 3:
            kinds = ["gauge", "untyped", "histogram", "summary"] + ["counter"] * name.endswith("_total")
            return f"# TYPE {name} {draw(st.sampled_from(kinds))}"
    labels = draw(label_sets())
    inside = style.inside
    pairs = f"{inside},{inside}".join(f'{key}{inside}={inside}"{value}"' for key, value in labels.items())
    braces = f"{style.before}{{{inside}{pairs}{inside}{style.comma}}}" if labels else draw(st.sampled_from(["", "{}"]))
    stamp = draw(st.just("") | st.integers(-(10**6), 2 * 10**12).map(lambda moment: f"{style.separator}{moment}"))
    value = f"{style.separator}{draw(numbers)}{stamp}{style.after}"
    return f"{style.before}{name}{draw(st.sampled_from(PARTS))}{braces}{value}"


@st.composite
def generated_pages(draw: st.DrawFn) -> str:
    """Pages of text format 0.0.4, with series that stand there twice."""
    end = draw(st.sampled_from(["\n", "\r\n"]))
    written = draw(st.lists(lines(draw(styles)), max_size=12))
    for _ in range(draw(st.integers(0, 2))):
        if written:
            at = draw(st.integers(0, len(written) - 1))
            written.insert(at, written[at])
    return end.join(written) + draw(st.sampled_from(["", end]))


moments = st.one_of(
    st.integers(0, 2 * 10**9).map(str),
    # With an exponent after nine decimals, or beside ones without, prometheus_client misreads or trips over them.
    st.floats(0, 2e9).map("{:.6f}".format),
    st.sampled_from(["1700000000.123456789", "0", "-5", "1."]),
)


@st.composite
def exemplars(draw: st.DrawFn) -> str:
    if draw(st.integers(0, 2)):
        return ""
    labels = draw(st.sampled_from(["", 'trace_id="x"', 'trace_id="m 1 } # {"', 'a="b",c="d"']))
    return (
        f" # {{{labels}}} {draw(st.sampled_from(['0.5', '1', '1e-3']))}{draw(st.just('') | moments.map(' {}'.format))}"
    )


@st.composite
def openmetrics_families(draw: st.DrawFn, name: str) -> list[str]:
    kind = draw(st.sampled_from(["gauge", "counter", "histogram", "summary", "unknown", "info"]))
    header = [f"# TYPE {name} {kind}"]
    if draw(st.booleans()):
        header.append(f"# HELP {name} {draw(label_values)}")
    if kind == "gauge" and name.endswith("_seconds") and draw(st.booleans()):
        header.append(f"# UNIT {name} seconds")
    keys = [key for key in KEYS if key not in ("le", "quantile")]
    sets = st.dictionaries(st.sampled_from(keys), label_values, max_size=2)
    found: list[str] = []
    for labels in draw(st.lists(sets.map(lambda one: tuple(sorted(one.items()))), unique=True, max_size=3)):
        inner = ",".join(f'{key}="{value}"' for key, value in labels)
        braces = f"{{{inner}}}" if inner else draw(st.sampled_from(["", "{}"]))
        also = f"{inner}," if inner else ""
        stamp = draw(st.just("") | moments.map(" {}".format))
        match kind:
            case "gauge" | "unknown":
                found.append(f"{name}{braces} {draw(numbers)}{stamp}")
            case "counter":
                found.append(f"{name}_total{braces} {draw(st.integers(0, 10**9))}{stamp}{draw(exemplars())}")
                if draw(st.booleans()):
                    found.append(f"{name}_created{braces} 1.7e9{stamp}")
            case "info":
                found.append(f"{name}_info{braces} 1{stamp}")
            case "histogram":
                counts = sorted(draw(st.lists(st.integers(0, 99), min_size=3, max_size=3)))
                for bound, count in zip(("0.5", "1.0", "+Inf"), counts, strict=True):
                    found.append(f'{name}_bucket{{{also}le="{bound}"}} {count}{stamp}{draw(exemplars())}')
                found += [
                    f"{name}_count{braces} {counts[-1]}{stamp}",
                    f"{name}_sum{braces} {draw(st.floats(0))}{stamp}",
                ]
            case "summary":
                found.append(f'{name}{{{also}quantile="0.5"}} {draw(st.floats(0, 9))}{stamp}')
                found += [f"{name}_count{braces} 5{stamp}", f"{name}_sum{braces} {draw(st.floats(0, 9))}{stamp}"]
        if kind in ("gauge", "counter", "unknown") and found and draw(st.integers(0, 3)) == 0:
            repeated = found[-1].partition(" # ")[0]
            if stamp and draw(st.booleans()):
                repeated = repeated.rpartition(" ")[0] + " 2000000001"  # a later point of the same series
            found.append(repeated)
    return header + found


@st.composite
def openmetrics_pages(draw: st.DrawFn) -> str:
    names = draw(st.lists(st.sampled_from(["m", "m_x", "vllm:n", "delay_seconds"]), unique=True, max_size=3))
    written = [line for name in names for line in draw(openmetrics_families(name))]
    return "\n".join([*written, "# EOF"]) + draw(st.sampled_from(["\n", ""]))


@settings(max_examples=EXAMPLES, deadline=None)
@given(generated_pages())
def test_generated_pages_have_the_values_that_prometheus_client_reads(page: str) -> None:
    theirs = parsed(page)
    for name in {name + part for name in NAMES for part in PARTS}:
        assert same(samples(page.encode(), [name]), theirs.get(name, []))
    check_selectors(page.encode(), theirs)


@settings(max_examples=EXAMPLES, deadline=None)
@given(openmetrics_pages())
def test_openmetrics_pages_have_the_values_that_prometheus_client_reads(page: str) -> None:
    try:
        theirs = parsed_openmetrics(page)
    except ValueError:
        event("not accepted")
        theirs = {}
    else:
        event("accepted")
    for name, series in theirs.items():
        ours = samples(page.encode(), [name])
        # The parser leaves out a sample with the labels and the timestamp of the one before it.
        told = [one for index, one in enumerate(ours) if not index or said(one) != said(ours[index - 1])]
        assert same(told, series), name
    check_selectors(page.encode(), theirs)


def said(one: Sample) -> tuple[dict[str, str], float]:
    return one[1], one[3]


@settings(max_examples=EXAMPLES, deadline=None)
@given(generated_pages(), st.data())
def test_a_damaged_page_never_raises(page: str, data: st.DataObject) -> None:
    damaged = bytearray(page.encode())
    for _ in range(data.draw(st.integers(1, 5))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    samples(bytes(damaged), NAMES)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise(page: bytes) -> None:
    samples(page, ["m", "a"])
    parse_labels(page)


def test_the_time_that_a_hostile_line_takes_grows_with_its_length_alone() -> None:
    """Backtracking would need hours for these."""
    for line in (
        b'm{a="' + b"\\" * 100_001,
        b"m{" + b'a="v",' * 50_000,
        b"m" + b" " * 100_000 + b"x y z",
        b"m{" * 50_000,
    ):
        assert samples(line + b"\nm 1\n", ["m"]) == [("m", {}, 1.0, 0.0)]
