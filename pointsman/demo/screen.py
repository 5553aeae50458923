"""Where the demo shows itself: a live view at a terminal, with the journal scrolling above it, or plain lines."""

import sys
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pointsman.demo.journal import Entry, Tone
from pointsman.demo.view import Picture, render, status_line
from pointsman.demo.words import clock

_MARKS: dict[Tone, str] = {"step": "▶", "seen": " ", "bad": "!"}
_STYLES: dict[Tone, str] = {"step": "bold cyan", "seen": "", "bad": "bold red"}
LINE_EVERY = 2.0
"""Seconds between two status lines where there is no live view."""


class Screen(Protocol):
    """What the demo needs to show itself."""

    def line(self, text: str = "") -> None:
        """A line of text, to stay."""

    def entry(self, entry: Entry) -> None:
        """An entry of the journal, to stay."""

    def picture(self, picture: Picture) -> None:
        """How things are now; the next one takes its place."""

    def close(self) -> None:
        """No more pictures; lines are still possible."""


def open_screen(*, plain: bool) -> Screen:
    """A live one when stdout is a terminal that can do it."""
    console = Console(highlight=False, markup=False, emoji=False)
    return PlainScreen() if plain or not console.is_terminal or console.is_dumb_terminal else LiveScreen(console)


class LiveScreen:
    """Lines and entries scroll; below them the picture is drawn again and again."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Its own thread would draw what is half changed; the demo draws when it has looked.
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)

    def line(self, text: str = "") -> None:
        # A command that is broken by the console can't be copied; the terminal wraps it without that.
        self._console.print(Text(text), soft_wrap=True)

    def entry(self, entry: Entry) -> None:
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_column(no_wrap=True)
        row.add_column(no_wrap=True)
        row.add_column()
        style = _STYLES[entry.tone]
        row.add_row(Text(clock(entry.at), "dim"), Text(_MARKS[entry.tone], style), Text(entry.text, style))
        self._console.print(row)

    def picture(self, picture: Picture) -> None:
        if not self._live.is_started:
            self._live.start()
        self._live.update(render(picture, self._console.width), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def __repr__(self) -> str:
        return f"<LiveScreen {self._console.width}x{self._console.height}>"


class PlainScreen:
    """Nothing but lines, for logs and pipes."""

    def __init__(self, every: float = LINE_EVERY) -> None:
        self._every = every
        self._due = every

    def line(self, text: str = "") -> None:
        print(text, flush=True)

    def entry(self, entry: Entry) -> None:
        self.line(f"{clock(entry.at)} {_MARKS[entry.tone]} {entry.text}")

    def picture(self, picture: Picture) -> None:
        if picture.elapsed >= self._due:
            self._due = picture.elapsed + self._every
            self.line(f"{clock(picture.elapsed)}   {status_line(picture)}")

    def close(self) -> None:
        sys.stdout.flush()

    def __repr__(self) -> str:
        return f"<PlainScreen, a line every {self._every:g} s>"
