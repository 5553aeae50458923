"""Where the demo shows itself: a live view in a terminal, below the scrolling journal, or plain lines."""

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pointsman.demo.journal import Entry, Tone
from pointsman.demo.view import Picture, render, status_line
from pointsman.top.format import clock

_MARKS: dict[Tone, str] = {"step": "▶", "seen": " ", "bad": "!"}
_STYLES: dict[Tone, str] = {"step": "bold cyan", "seen": "", "bad": "bold red"}
STATUS_INTERVAL = 2.0
"""Seconds between two status lines without a live view."""


class Screen:
    """Prints lines and journal entries, and shows pictures: live in a terminal, otherwise as a status line."""

    def __init__(self, console: Console | None = None, *, plain: bool = False) -> None:
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        self._live: Live | None = None
        if not plain and self._console.is_terminal and not self._console.is_dumb_terminal:
            # Without its thread, which would draw half-changed pictures.
            self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._status_due = STATUS_INTERVAL

    def line(self, text: str = "") -> None:
        if self._live is None:
            print(text, flush=True)
        else:  # soft wrap: a command that the console breaks into lines can't be copied
            self._console.print(Text(text), soft_wrap=True)

    def entry(self, entry: Entry) -> None:
        """An entry of the journal."""
        if self._live is None:
            self.line(f"{clock(entry.at)} {_MARKS[entry.tone]} {entry.text}")
            return
        row = Table.grid(padding=(0, 1, 0, 0))
        style = _STYLES[entry.tone]
        row.add_row(Text(clock(entry.at), "dim"), Text(_MARKS[entry.tone], style), Text(entry.text, style))
        self._console.print(row)

    def picture(self, picture: Picture) -> None:
        """Show the system as it is now, in place of the last picture."""
        if self._live is not None:
            self._live.start()
            self._live.update(render(picture, self._console.width), refresh=True)
        elif picture.elapsed >= self._status_due:
            self._status_due = picture.elapsed + STATUS_INTERVAL
            self.line(f"{clock(picture.elapsed)}   {status_line(picture)}")

    def close(self) -> None:
        """Remove the picture. Lines can still be printed."""
        if self._live is not None:
            self._live.stop()

    def __repr__(self) -> str:
        return f"<Screen {'plain' if self._live is None else 'live'} {self._console.width}x{self._console.height}>"
