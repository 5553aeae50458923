"""Lines, and below them a picture that is redrawn in place; without a terminal, a status line instead."""

import time
from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

STATUS_INTERVAL = 2.0
"""Seconds between two status lines without a live view."""


class Screen:
    """The terminal of a command. `plain` prints lines only, also in a terminal."""

    def __init__(
        self,
        console: Console | None = None,
        *,
        plain: bool = False,
        interval: float = STATUS_INTERVAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        self._live: Live | None = None
        if not plain and self._console.is_terminal and not self._console.is_dumb_terminal:
            # Without its thread, which would draw half-changed pictures.
            self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._interval = interval
        self._clock = clock
        self._status_due = clock() + interval

    @property
    def live(self) -> bool:
        """Whether pictures are drawn."""
        return self._live is not None

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the terminal in characters."""
        return self._console.width, self._console.height

    def line(self, text: str = "") -> None:
        if self._live is None:
            print(text, flush=True)
        else:  # soft wrap: a command that the console breaks into lines can't be copied
            self._console.print(Text(text), soft_wrap=True)

    def columns(self, *cells: tuple[str, str]) -> None:
        """A line of (text, style) cells, of which the last is wrapped below itself."""
        if self._live is None:
            print(" ".join(text for text, _ in cells), flush=True)
            return
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_row(*(Text(text, style) for text, style in cells))
        self._console.print(row)

    def picture(self, draw: Callable[[int, int], RenderableType], status: Callable[[], str]) -> None:
        """Show what `draw` makes for a width and a height in place of the last picture; or the status line, when one is
        due."""
        if self._live is not None:
            self._live.start()
            self._live.update(draw(*self.size), refresh=True)
        elif self._clock() >= self._status_due:
            self._status_due = self._clock() + self._interval
            self.line(status())

    def close(self) -> None:
        """Remove the picture. Lines can still be printed."""
        if self._live is not None:
            self._live.stop()

    def __repr__(self) -> str:
        return f"<Screen {'plain' if self._live is None else 'live'} {self._console.width}x{self._console.height}>"
