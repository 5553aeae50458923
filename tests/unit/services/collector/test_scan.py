"""The scan finds what a whole-page parser finds, and nothing on a page can hurt it."""

import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from services.collector.scan import parse_labels, scan, steps
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
    """Every sample by name, according to prometheus_client; counters under their names on the page."""
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(page):
        for one in family.samples:
            moment = 0.0 if one.timestamp is None else float(one.timestamp) * 1000
            found.setdefault(one.name, []).append((one.name, dict(one.labels), float(one.value), moment))
    return found


def same(ours: list[Sample], theirs: list[Sample]) -> bool:
    return len(ours) == len(theirs) and all(
        one[:2] == other[:2]
        and (one[2] == other[2] or (math.isnan(one[2]) and math.isnan(other[2])))
        and math.isclose(one[3], other[3], rel_tol=1e-12)
        for one, other in zip(ours, theirs, strict=True)
    )


def test_the_recorded_page_has_the_values_that_prometheus_client_reads() -> None:
    page = recorded_vllm_page()
    expected = parsed(page.decode())
    assert len(expected) > 100
    for name, theirs in expected.items():
        assert same(samples(page, [name]), theirs), name


NAMES = ("m", "m_total", "m:n", "vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason", "_x", "A")
label_values = st.text(st.characters(codec="utf-8", exclude_characters='\n\r\\"'), max_size=10) | st.sampled_from(
    [r"\\", r"\"", r"\n", "}", "{", "#", " # ", "=", ",", r"a\"b\\", "m 1"]
)
numbers = st.one_of(
    st.floats().map(repr),
    st.integers(-(10**12), 10**12).map(str),
    st.sampled_from(["NaN", "+Inf", "-Inf", "1e5", "0", "-0", ".5", "5."]),
)
blanks = st.sampled_from(["", " ", "  "])


@st.composite
def lines(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(NAMES))
    kind = draw(st.integers(0, 12))
    if kind == 0:
        return f"# HELP {name} {draw(label_values)}"
    if kind == 1:
        return ""
    if kind == 2:
        return f"# {draw(label_values)}"
    keys = draw(st.lists(st.sampled_from(["a", "b", "le", "model_name"]), unique=True, max_size=3))
    comma = draw(st.sampled_from(["", ","])) if keys else ""
    pairs = ",".join(f'{key}{draw(blanks)}={draw(blanks)}"{draw(label_values)}"' for key in keys)
    braces = f"{draw(blanks)}{{{draw(blanks)}{pairs}{comma}}}"
    braced = draw(st.booleans()) or bool(keys)
    stamp = draw(st.just("") | st.integers(-(10**6), 2 * 10**12).map(lambda moment: f" {moment}"))
    return f"{draw(blanks)}{name}{braces if braced else ''} {draw(numbers)}{stamp}{draw(blanks)}"


@st.composite
def generated_pages(draw: st.DrawFn) -> str:
    end = draw(st.sampled_from(["\n", "\r\n"]))
    body = end.join(draw(st.lists(lines(), max_size=12)))
    return body + draw(st.sampled_from(["", end]))


@settings(max_examples=EXAMPLES, deadline=None)
@given(generated_pages())
def test_generated_pages_have_the_values_that_prometheus_client_reads(page: str) -> None:
    theirs = parsed(page)
    for name in NAMES:
        assert same(samples(page.encode(), [name]), theirs.get(name, []))


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
