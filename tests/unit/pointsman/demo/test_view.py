"""What the demo says of its load, above the pool."""

import io

import pytest
from msgspec import structs
from rich.console import Console

from pointsman.demo.tally import LoadFigures
from pointsman.demo.view import Picture, render, status_line
from tests.unit.pointsman.top.test_view import LARGE as POOL
from tests.unit.pointsman.top.test_view import NOTHING as NO_POOL

LOAD = LoadFigures(
    succeeded=12680,
    open=140,
    interrupted=12,
    rate=118.4,
    cached=0.62,
    first_token=(0.061, 0.626),
    duration=(0.517, 12.2),
)
LARGE = Picture(elapsed=3674, seconds=3700, url="http://127.0.0.1:38080", load=LOAD, system=POOL)
COMPARED = structs.replace(
    LARGE, round_robin=structs.replace(LOAD, cached=0.2, first_token=(0.161, 1.5), failed=1, interrupted=0)
)
NOTHING = Picture(elapsed=0, seconds=0, url="http://127.0.0.1:8080", load=LoadFigures(), system=NO_POOL)


def text(picture: Picture, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    console.print(render(picture, width))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("picture", [LARGE, COMPARED], ids=["alone", "compared"])
def test_nothing_is_cut_off(picture: Picture, width: int) -> None:
    lines = text(picture, width)
    assert not [line for line in lines if "…" in line]
    assert max(len(line) for line in lines) <= width


def test_what_it_says_of_the_load() -> None:
    title, requests, times, *_ = text(LARGE)
    assert title.startswith("Pointsman  61:14 of 61:40  http://127.0.0.1:38080  Ctrl-C ends it ")
    assert requests == "requests  118/s · 12680 ok · 140 open · 0 failed · 12 resent after kills"
    assert times == "p50, p99  first token 61 ms, 626 ms · total 517 ms, 12.2 s · prompts cached 62%"


def test_a_comparison_has_the_other_load_below() -> None:
    _, _, _, beside, times, *_ = text(COMPARED)
    assert beside == "beside it round robin · 118/s · 12680 ok · 140 open · 1 failed"
    assert times == "          first token 161 ms, 1.5 s · total 517 ms, 12.2 s · prompts cached 20%"
    assert " · round robin: first token p50 161 ms p99 1.5 s, cached 20% · " in status_line(COMPARED)


def test_it_can_be_drawn_before_anything_is_known() -> None:
    assert text(NOTHING)[2] == "p50, p99  first token –, – · total –, – · prompts cached –"
    assert status_line(NOTHING).startswith("00:00   0 ok, 0 open, 0 failed · first token p50 – p99 –, cached – · ")
