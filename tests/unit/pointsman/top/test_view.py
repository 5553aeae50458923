"""The picture as text: what it says, and that it fits."""

import io

import pytest
from msgspec import structs
from rich.console import Console

from pointsman.top.snapshot import Snapshot
from pointsman.top.view import SORTINGS, Sorting, condition, render, status_line
from shared.pool_view.rows import BandRow, EndpointRow, FlowRow, MemberRow, PoolState

GOOD = PoolState(connected=True, synced=True, facts_age=0.3, source_age=0.3, frames_age=0.05)


def row(name: str, **fields: object) -> EndpointRow:
    return EndpointRow(id=f"default/{name}", name=name, authority="10.0.0.1:8000", **fields)  # type: ignore[arg-type]


SERVERS = (
    row("model-1", queue=12, running=8, kv=0.43, age=2.3, in_flight=12, collector="collector-1"),
    row("model-2", queue=0, running=8, kv=1.0, age=0.045, in_flight=120, reachable=True, collector="collector-2"),
    row("model-3"),
)
MEMBERS = (
    MemberRow(tier="watcher", id="watcher-1", age=0.1),
    MemberRow(tier="watcher", id="watcher-2", age=0.1, leader=True),
    MemberRow(tier="collector", id="collector-1", age=0.1, endpoints=2),
    MemberRow(tier="picker", id="picker-1", age=0.1, in_flight=81, waiting=4),
    MemberRow(tier="picker", id="picker-2", age=0.1, in_flight=51, waiting=0),
)
FLOW = FlowRow(flow="00ff", requests=4, tokens=100, oldest=1.2, running=3)
BAND = BandRow(priority=-1, requests=4, tokens=100, oldest=1.2, running=3, rate=11.25, flow_count=1, flows=(FLOW,))
LARGE = Snapshot(pool="default/llama", state=GOOD, endpoints=SERVERS, members=MEMBERS, queues=(BAND,))
NOTHING = Snapshot(
    pool="default/llama",
    state=PoolState(
        connected=False, synced=False, facts_age=None, source_age=None, frames_age=None, reason="not connected"
    ),
)


def text(seen: Snapshot, width: int = 80, height: int | None = None, sort: Sorting = "name") -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    console.print(render(seen, width, height, sort=sort))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 200])
def test_texts_from_the_bus_dont_control_the_terminal(width: int) -> None:
    evil = "\x1b[2J\x9b1m\n"
    endpoint = row(evil, role=evil, collector=evil)
    members = tuple(MemberRow(tier=tier, id=evil, age=0.1) for tier in ("watcher", "collector", "picker"))
    broken = structs.replace(GOOD, reason=evil)
    seen = Snapshot(pool="default/llama", state=broken, endpoints=(endpoint,), members=members, queues=())
    assert all(line.isprintable() for line in [*text(seen, width), status_line(seen)])
    assert r"\x1b[2J\x9b1m\n" in "\n".join(text(seen, width))


@pytest.mark.parametrize("width", [80, 99, 100, 160])
def test_nothing_is_cut_off(width: int) -> None:
    lines = text(LARGE, width)
    assert not [line for line in lines if "…" in line]
    assert max(len(line) for line in lines) <= width


def test_what_it_says() -> None:
    lines = text(LARGE)
    assert lines[0].startswith("Pointsman  default/llama  Ctrl-C ends it ─")
    rows = {line.split()[0]: line.split() for line in lines if line}
    assert rows["model-1"] == ["model-1", "stale", "12", "8", "█▋", "43%", "12", "2.3", "s"]
    assert rows["model-2"] == ["model-2", "up", "0", "8", "████", "100%", "120", "45", "ms"]
    assert rows["model-3"] == ["model-3", "unknown", "–", "–", "–", "0", "–"]
    assert rows["-1"] == ["-1", "4", "1.2", "s", "3", "11.2", "1"]
    assert lines[-3:] == [
        "watcher   watcher-1 · watcher-2 leads",
        "collector collector-1 scrapes 2",
        "picker    picker-1 81 in flight, 4 waiting · picker-2 51 in flight",
    ]


def test_columns_that_no_endpoint_needs_are_left_out() -> None:
    assert "role" not in text(LARGE)[2].split()
    seen = structs.replace(LARGE, endpoints=(structs.replace(SERVERS[0], role="prefill"),))
    assert " ".join(text(seen)[2].split()) == "endpoint role queue running KV cache in flight age"
    assert text(seen, 120)[2].split()[-1] == "collector"


CONDITIONS: dict[str, EndpointRow] = {
    "up": row("m", age=0.1, reachable=True),
    "unknown": row("m"),
    "stale": row("m", age=2.1, reachable=True),
    "down": row("m", age=9.0, reachable=False),
    "draining": row("m", age=0.1, draining=True),
}


@pytest.mark.parametrize("word", CONDITIONS)
def test_an_endpoint_in_a_word(word: str) -> None:
    assert condition(CONDITIONS[word]) == word


def test_a_low_terminal_has_some_rows_and_the_number_of_the_others() -> None:
    seen = structs.replace(LARGE, endpoints=tuple(row(f"m-{number}", age=0.1) for number in range(1000)))
    lines = text(seen, height=24)
    assert len(lines) < 24
    assert [line for line in lines if "more" in line] == [f"… {1000 - sum('m-' in line for line in lines)} more"]
    assert len(text(seen, height=3)) < 24


@pytest.mark.parametrize(
    ("sort", "first"),
    [("name", "a"), ("queue", "b"), ("running", "c"), ("kv", "d"), ("in-flight", "e"), ("age", "f")],
)
def test_it_sorts_by_the_greatest_number(sort: Sorting, first: str) -> None:
    rows = (
        row("a", age=0.1),
        *(row("b", queue=5, age=0.1), row("c", running=5, age=0.1), row("d", kv=0.5, age=0.1)),
        *(row("e", in_flight=5, age=0.1), row("f")),
    )
    assert text(structs.replace(LARGE, endpoints=rows), sort=sort)[3].split()[0] == first
    assert sort in (*SORTINGS, "name")


def test_it_says_why_there_is_nothing_and_who_is_missing() -> None:
    lines = text(NOTHING)
    assert lines[1] == "not connected"
    assert "none" in lines
    assert lines[-1] == "picker    none"
    assert status_line(NOTHING) == "not connected"
    silent = structs.replace(LARGE, state=structs.replace(GOOD, facts_age=4.0))
    assert "no watcher for 4.0 s" in text(silent)[0]


def test_the_picture_in_one_line() -> None:
    assert status_line(LARGE) == (
        "waiting+running stale, 0+8, unknown · 132 requests in flight · 1 collector, 2 pickers"
    )
