"""The picture as text: what it says, and that it fits."""

import io

import pytest
from rich.console import Console

from pointsman.demo.snapshot import CollectorRow, EndpointRow, PickerRow, Snapshot
from pointsman.demo.tally import LoadFigures
from pointsman.demo.view import Picture, render, status_line

LOAD = LoadFigures(
    succeeded=12680,
    open=140,
    interrupted=12,
    rate=118.4,
    cached=0.62,
    first_token=(0.061, 0.626),
    duration=(0.517, 12.2),
)


SERVERS = (
    EndpointRow(
        name="model-1", engine="vllm", condition="starting", queue=12, running=8, kv=0.43, age=2.3, in_flight=12
    ),
    EndpointRow(
        name="model-2", engine="vllm", condition="up", queue=0, running=8, kv=1, age=0.045, in_flight=120, picks=7500
    ),
    EndpointRow(name="model-3", engine="vllm, slow", condition="killed", picks=2500),
)
BUSY = {"in_flight": 81, "peers": 1, "decisions": 104000, "fallbacks": 41}
PICKERS = (
    PickerRow(name="picker-1", condition="draining", rate=110.3, p50=0.000417, p99=0.0261, **BUSY),
    PickerRow(name="picker-2", condition="starting", rate=10.3, p50=0.0004, decisions=104, fallbacks=4),
)
COLLECTORS = (
    CollectorRow(name="collector-1", condition="up", endpoints=("model-2", "model-1"), frames=33550),
    CollectorRow(name="collector-2", condition="killed"),
)
LARGE = Picture(
    elapsed=3674,
    seconds=3700,
    url="http://127.0.0.1:38080",
    load=LOAD,
    system=Snapshot(endpoints=SERVERS, pickers=PICKERS, collectors=COLLECTORS),
)
NOTHING = Picture(elapsed=0, seconds=0, url="http://127.0.0.1:8080", load=LoadFigures(), system=Snapshot())


def text(picture: Picture, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    console.print(render(picture, width))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 99, 100, 160])
def test_nothing_is_cut_off(width: int) -> None:
    lines = text(LARGE, width)
    assert not [line for line in lines if "…" in line]
    assert max(len(line) for line in lines) <= width


def test_it_leaves_a_terminal_of_24_rows_room_for_the_journal() -> None:
    assert len(text(LARGE, 80)) <= 17


def test_what_it_says_of_the_load() -> None:
    title, requests, times, *_ = text(LARGE, 80)
    assert title.startswith("Pointsman  61:14 of 61:40  http://127.0.0.1:38080  Ctrl-C ends it ─")
    assert requests == "requests  118/s · 12680 ok · 140 open · 0 failed · 12 resent after kills"
    assert times == "p50, p99  first token 61 ms, 626 ms · total 517 ms, 12.2 s · prompts cached 62%"


def test_what_it_says_of_servers_pickers_and_collectors() -> None:
    rows = {line.split()[0]: line.split() for line in text(LARGE, 80) if line}
    assert rows["model-1"] == ["model-1", "vllm", "starting", "12", "8", "█▋", "43%", "12", "0", "0%", "2.3", "s"]
    assert rows["model-2"] == ["model-2", "vllm", "up", "0", "8", "████", "100%", "120", "7500", "75%", "45", "ms"]
    assert rows["model-3"] == ["model-3", "vllm,", "slow", "killed", "–", "–", "0", "2500", "25%", "–"]
    assert rows["picker-1"] == ["picker-1", "draining", "110.3", "417", "µs", "26", "ms", "81", "1", "104000", "41"]
    assert rows["picker-2"] == ["picker-2", "starting", "–", "–", "–", "–", "–", "104", "4"]
    assert rows["collector-1"] == ["collector-1", "up", "33550", "model-1,", "model-2"]
    assert rows["collector-2"] == ["collector-2", "killed", "0", "–"]


def test_it_can_be_drawn_before_anything_is_known() -> None:
    assert text(NOTHING, 80)[2] == "p50, p99  first token –, – · total –, – · prompts cached –"
    assert status_line(NOTHING).startswith("0 ok, 0 open, 0 failed · first token p50 – p99 –")


def test_the_picture_in_one_line() -> None:
    assert status_line(LARGE) == (
        "12680 ok, 140 open, 0 failed · first token p50 61 ms p99 626 ms · cached 62%"
        " · waiting+running starting, 0+8, killed · picks/s draining, starting"
    )
