"""LineSplitter out of pieces, events out of lines."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.watcher.kubernetes.errors import BadAnswer
from services.watcher.kubernetes.watch_events import LineSplitter, WatchEvent, check_object, next_page, parse_event


@settings(max_examples=50)
@given(
    lines=st.lists(st.binary(min_size=1, max_size=40).filter(lambda item: b"\n" not in item and not item.isspace())),
    cuts=st.lists(st.integers(0, 2000)),
)
def test_lines_are_the_same_however_the_bytes_are_cut(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(each_line + b"\n" for each_line in lines)
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    reader = LineSplitter(100)
    found = [line for start, end in itertools.pairwise(places) for line in reader.feed(data[start:end])]
    assert found == lines
    assert reader.pending == 0


def test_a_line_of_the_limit_is_taken_and_a_longer_one_is_refused() -> None:
    assert list(LineSplitter(5).feed(b"12345\n")) == [b"12345"]
    with pytest.raises(BadAnswer, match="longer than the limit of 5 bytes"):
        list(LineSplitter(5).feed(b"123456\n"))
    assert list(LineSplitter(5).feed(b"\n \r\none\n\n")) == [b"one"], "empty ones are none"
    reader = LineSplitter(5)
    assert [list(reader.feed(b"x")) for _ in range(5)] == [[]] * 5
    assert reader.pending == 5
    with pytest.raises(BadAnswer):  # before it fills the memory
        list(reader.feed(b"x"))


def test_an_event() -> None:
    event = parse_event(b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7"}},"more":1}')
    assert event == WatchEvent("ADDED", {"metadata": {"name": "a", "resourceVersion": "7"}})
    assert event.resource_version == "7"


@pytest.mark.parametrize(
    "line", [b"no", b"[]", b"{}", b'{"type":1,"object":{}}', b'{"type":"ADDED","object":{}', b"\xff", b"x" * 100_000]
)
def test_a_line_that_is_no_event_is_refused_and_shown_in_part(line: bytes) -> None:
    with pytest.raises(BadAnswer, match="isn't an event") as caught:
        parse_event(line)
    assert line.decode(errors="replace")[:100] in str(caught.value)
    assert len(str(caught.value)) < 250


NO_VERSIONS: list[object] = [None, [], {}, {"metadata": None}, {"metadata": {"resourceVersion": ""}}]


@pytest.mark.parametrize(
    ("item", "path"),
    [
        *((item, "resourceVersion") for item in NO_VERSIONS),
        *(({"metadata": {"resourceVersion": "7", "name": name}}, "name is") for name in (None, "", 7)),
        ({"metadata": {"resourceVersion": "7", "name": "a", "namespace": ["b"]}}, "namespace of 'a' is"),
    ],
)
def test_an_object_without_a_version_or_a_name_is_refused(item: object, path: str) -> None:
    with pytest.raises(BadAnswer, match=rf"metadata\.{path}"):
        check_object(item)


def test_a_list_goes_on_with_a_string() -> None:
    assert [next_page({"metadata": more}) for more in ({}, {"continue": None}, {"continue": "abc"})] == ["", "", "abc"]
    with pytest.raises(BadAnswer, match=r"metadata\.continue is {'a': 1}"):
        next_page({"metadata": {"continue": {"a": 1}}})
