"""What is written, and when."""

import io

import pytest
from rich.console import Console

from pointsman.demo.journal import Entry
from pointsman.demo.screen import Screen
from tests.unit.pointsman.demo.test_view import LARGE, NOTHING


def live(width: int = 80) -> tuple[Screen, io.StringIO]:
    file = io.StringIO()
    return Screen(Console(file=file, width=width, height=24, force_terminal=True, color_system=None)), file


def test_plain_lines_come_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(plain=True)
    screen.line("Starting")
    screen.entry(Entry(67.0, "step", "SIGKILL to model-1"))
    screen.entry(Entry(68.0, "seen", "It goes on."))
    screen.entry(Entry(69.0, "bad", "A request failed."))
    assert capsys.readouterr().out.splitlines() == [
        "Starting",
        "01:07 ▶ SIGKILL to model-1",
        "01:08   It goes on.",
        "01:09 ! A request failed.",
    ]


def test_a_status_line_comes_only_every_so_often(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(plain=True)
    for elapsed in (0.0, 1.9, 2.0, 2.5, 3.9, 4.1):
        screen.picture(type(NOTHING)(elapsed=elapsed, seconds=0, url="", load=NOTHING.load, system=NOTHING.system))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["00:02", "00:04"]


def test_where_there_is_no_terminal_lines_are_plain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    Screen().picture(LARGE)
    assert capsys.readouterr().out.startswith("61:14   12680 ok, ")


def test_a_live_screen_wraps_entries_beside_their_time() -> None:
    screen, file = live(width=40)
    screen.entry(Entry(7.0, "seen", "picker-1 has gone and picker-2 decides alone."))
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
    screen.picture(LARGE)
    screen.line("said meanwhile")
    screen.close()
    screen.line("Summary")
    shown = file.getvalue()
    assert "model-2" in shown
    assert "said meanwhile" in shown
    assert shown.index("\x1b[?25l") < shown.rindex("\x1b[?25h")  # the cursor is back
    assert shown.endswith("Summary\n")
