"""What is written, and when."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from pointsman.top.screen import Screen


def live(width: int = 80) -> tuple[Screen, io.StringIO]:
    file = io.StringIO()
    return Screen(Console(file=file, width=width, height=24, force_terminal=True, color_system=None)), file


def test_plain_lines_come_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(plain=True)
    screen.line("Starting")
    screen.columns(("01:07", "dim"), ("▶", "bold"), ("SIGKILL to model-1", ""))
    assert capsys.readouterr().out.splitlines() == ["Starting", "01:07 ▶ SIGKILL to model-1"]


def test_a_status_line_comes_only_every_so_often(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 0.0, 1.9, 2.0, 2.0, 2.5, 3.9, 4.1, 4.1])
    screen = Screen(plain=True, interval=2.0, clock=lambda: next(times))
    for number in range(6):
        screen.picture(lambda width, height: Text("picture"), lambda number=number: f"status {number}")  # type: ignore[misc]
    assert capsys.readouterr().out.splitlines() == ["status 2", "status 5"]


def test_a_live_screen_wraps_the_last_cell_below_itself() -> None:
    screen, file = live(width=40)
    screen.columns(("00:07", ""), (" ", ""), ("picker-1 has gone and picker-2 decides alone.", ""))
    assert [line.rstrip() for line in file.getvalue().splitlines()] == [
        "00:07   picker-1 has gone and picker-2",
        "        decides alone.",
    ]


def test_a_command_is_never_broken_into_lines() -> None:
    screen, file = live(width=40)
    command = "curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' [x]"
    screen.line(command)
    assert file.getvalue() == command + "\n"


def test_a_live_screen_leaves_lines_and_no_picture() -> None:
    screen, file = live()
    screen.picture(lambda width, height: Text(f"{width}x{height}"), lambda: "status")
    screen.line("said meanwhile")
    screen.close()
    screen.line("Summary")
    shown = file.getvalue()
    assert "80x24" in shown
    assert "said meanwhile" in shown
    assert "status" not in shown
    assert shown.index("\x1b[?25l") < shown.rindex("\x1b[?25h")  # the cursor is back
    assert shown.endswith("Summary\n")
