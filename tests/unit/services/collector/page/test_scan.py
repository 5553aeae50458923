"""The scan finds what a whole-page parser finds, and nothing on a page can hurt it."""

import math
import os
import tracemalloc
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from services.collector.page.scan import MAX_LABELS, parse_labels, pieces, scan
from services.collector.page.selection import Newest
from services.collector.page.spec import MetricSpec
from tests.unit.services.collector.pages import Everything, Sample, recorded_vllm_page, samples
from tests.work import counted

EXAMPLES = int(os.environ.get("POINTSMAN_SCAN_EXAMPLES", "100"))
"""Generated pages; more by the environment: POINTSMAN_SCAN_EXAMPLES=10000."""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("m\t1\n", ({}, 1.0, 0.0)),
        ("  m   1  \n", ({}, 1.0, 0.0)),
        ("m {} 1\n", ({}, 1.0, 0.0)),
        ('m{a="\udcff\udcfe"} 1\n', ({"a": "��"}, 1.0, 0.0)),
        ('m{a="v"}1\n', ({"a": "v"}, 1.0, 0.0)),
        ("m 1 1700000000.5\n", ({}, 1.0, 1700000000.5)),
        ('m{a="x}{,= y"} 1\n', ({"a": "x}{,= y"}, 1.0, 0.0)),
        (r'm{a="q\" b\\ n\n t\t"} 1' + "\n", ({"a": 'q" b\\ n\n t\\t'}, 1.0, 0.0)),
        ('m{a="ä€"} 1\n', ({"a": "ä€"}, 1.0, 0.0)),
        ('m{a="v"} 5 # {trace_id="x"} 0.5 1.0\n', ({"a": "v"}, 5.0, 0.0)),
        ('m 5 1.5 # {trace_id="} 9"} 0.5 1.0\n', ({}, 5.0, 1.5)),
    ],
)
def test_a_sample_has_labels_a_value_and_perhaps_a_timestamp(
    line: str, expected: tuple[dict[str, str], float, float]
) -> None:
    assert samples(line.encode(errors="surrogateescape"), ["m"]) == [("m", *expected)]


@pytest.mark.parametrize(
    "line",
    [
        *("m", "m ", "m{", "m{}", "m{a} 1", "m{a=v} 1", 'm{a="v} 1', 'm{a="v"', 'm{a="v"} ', 'm{a="v" b="w"} 1'),
        *('m{a="v"}} 1', "m one", "m 1_000", "m 1 later", "m 1 2 3", "m 0x1p-2", "# m 1", "# HELP m is a metric 1"),
        *("# TYPE m gauge", "other m 1", 'other{m="m 1"} 1', "mm 1", "m:m 1", "xm 1", "m_total 1"),
    ],
)
def test_a_line_that_is_no_sample_of_the_metric_costs_only_itself(line: str) -> None:
    page = f"m 7\n{line}\nm 8\n".encode()
    assert [value for _, _, value, _ in samples(page, ["m"])] == [7.0, 8.0]


def test_sinks_of_one_metric_are_all_offered_its_samples() -> None:
    each, other = Everything(), Everything()
    assert scan(b"m 1\nm 2\n", b"m", [each, other]) == (0, 8, 8)
    assert each.samples == other.samples == [(b"", 1.0, 0.0), (b"", 2.0, 0.0)]


def test_the_pieces_of_a_page_end_with_its_lines_and_are_all_of_it() -> None:
    page = b"".join(b"m %d\n" % number for number in range(1000)) + b"m " + b"9" * 300 + b"\nm 5"
    parts = list(pieces(page, 100))
    assert b"".join(page[start:end] for start, end in parts) == page
    assert all(page[end - 1 : end] == b"\n" for _, end in parts[:-1])
    assert all(end - start <= 310 for start, end in parts)


def test_a_line_that_is_too_long_costs_only_itself() -> None:
    page = b'm 1\nm{a="' + b"x" * 500 + b'"} 2\nm 3\nm{a="' + b"x" * 500
    assert [page[start:end] for start, end in pieces(page, 20, 100)] == [b"m 1\n", b"m 3\n"]


def test_a_long_last_line_without_a_newline_is_part_of_the_page() -> None:
    last = b"m 2 # " + b"x" * 50
    assert [*pieces(b"m 1\n" + last, 20, 100)] == [(0, 4), (4, 4 + len(last))]


def test_a_scan_ends_after_as_many_lines_as_it_is_told_and_goes_on_there() -> None:
    page, sink = b"m 1\nm 2\nm m{} 1\nm 3\n", Everything()
    assert scan(page, b"m", [sink], limit=2) == (0, 8, 8)
    assert scan(page, b"m", [sink], 8, limit=1) == (-1, -1, 16)
    assert scan(page, b"m", [sink], 16, limit=2) == (16, 20, 20)
    assert [value for _, value, _ in sink.samples] == [1.0, 2.0, 3.0]
    assert scan(page, b"n", [sink]) == (-1, -1, 20)
    assert scan(b"m 1\nm x y z", b"m", [sink], 4, limit=1) == (-1, -1, 11)


def parsed(page: str) -> dict[str, list[Sample]]:
    """Every sample by name, according to prometheus_client; timestamps in milliseconds, as on the page."""
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            moment = 0.0 if sample.timestamp is None else float(sample.timestamp) * 1000
            found.setdefault(sample.name, []).append((sample.name, dict(sample.labels), float(sample.value), moment))
    return found


def same(ours: list[Sample], theirs: list[Sample]) -> bool:
    return len(ours) == len(theirs) and all(
        our[:2] == other[:2] and equal(our[2], other[2]) and math.isclose(our[3], other[3], rel_tol=1e-12)
        for our, other in zip(ours, theirs, strict=True)
    )


def equal(number: float | None, other: float | None) -> bool:
    return number == other or (number is not None and other is not None and math.isnan(number) and math.isnan(other))


def test_the_recorded_page_has_the_values_that_prometheus_client_reads() -> None:
    page = recorded_vllm_page()
    expected = parsed(page.decode())
    assert len(expected) > 100
    for name, theirs in expected.items():
        assert same(samples(page, [name]), theirs), name


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


@settings(max_examples=EXAMPLES, deadline=None)
@given(generated_pages())
def test_generated_pages_have_the_values_that_prometheus_client_reads(page: str) -> None:
    theirs = parsed(page)
    for name in {name + part for name in NAMES for part in PARTS}:
        assert same(samples(page.encode(), [name]), theirs.get(name, []))


@settings(max_examples=EXAMPLES, deadline=None)
@given(generated_pages(), st.data())
def test_a_damaged_page_never_raises(page: str, data: st.DataObject) -> None:
    damaged = bytearray(page.encode())
    for _ in range(data.draw(st.integers(1, 5))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    samples(bytes(damaged), NAMES)


def test_the_time_that_a_hostile_line_takes_grows_with_its_length_alone() -> None:
    """Backtracking would need hours for these."""
    for line in (
        b'm{a="' + b"\\" * 100_001,
        b"m{" + b'a="v",' * 50_000,
        b"m" + b" " * 100_000 + b"x y z",
        b"m{" * 50_000,
    ):
        assert samples(line + b"\nm 1\n", ["m"]) == [("m", {}, 1.0, 0.0)]


def test_labels_that_are_different_on_each_page_dont_fill_the_memory() -> None:
    tracemalloc.start()
    for page in range(100):
        assert len(parse_labels(b",".join([b'l%d="%d"' % (number, page) for number in range(200)]))) == 200
    assert tracemalloc.get_traced_memory()[0] < 2**20
    tracemalloc.stop()


def labels_of(number: int) -> bytes:
    return b",".join([b'l%d=""' % label for label in range(number)])


def test_of_very_many_labels_the_first_are_read() -> None:
    allowed, too_many = labels_of(MAX_LABELS), labels_of(20_000)
    with counted() as work:
        found = parse_labels(allowed)
    with counted() as more_work:
        assert parse_labels(too_many) == found
    assert len(found) == MAX_LABELS
    assert more_work.instructions < 2 * work.instructions


def test_all_selectors_of_a_metric_share_the_reading_of_long_labels() -> None:
    page = b"".join(b'm{a%d="",%s} 1\n' % (line, labels_of(200)) for line in range(10))

    def work(selectors: int) -> int:
        with counted() as found:
            scan(page, b"m", [Newest(MetricSpec("m", (("b", str(number)),))) for number in range(selectors)])
        return found.instructions

    assert work(10) < 2 * work(1)


def test_long_labels_count_as_several_lines() -> None:
    page = b"m{%s} 1\n" % labels_of(1000) * 20
    assert scan(page, b"m", [Everything()], limit=50).end <= len(page) // 20


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (rb"a\nb", "a\nb"),
        (rb"a\nb\\n\"\\", 'a\nb\\n"\\'),
        (rb"\\\n\\\\n", "\\\n\\\\n"),
        (rb"\x\\x\t", "\\x\\x\\t"),
    ],
)
def test_a_label_is_read_without_its_escapes(written: bytes, text: str) -> None:
    assert parse_labels(b'a="%s"' % written) == {"a": text}


def test_escapes_take_no_work_each() -> None:
    with counted() as few:
        parse_labels(b'a="%s"' % (rb"\n" * 300))
    with counted() as many:
        parse_labels(b'a="%s"' % (rb"\n" * 30_000))
    assert many.instructions < 2 * few.instructions
