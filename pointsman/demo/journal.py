"""What the demo reports while it runs: short entries, each with the time since the load began."""

from collections import Counter
from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

Tone: TypeAlias = Literal["step", "seen", "bad"]
"""What the demo does, what happens then, and what is wrong."""


class Entry(Struct, frozen=True):
    """One report."""

    at: float
    """Seconds since the load began."""
    tone: Tone
    text: str


class Journal:
    """Passes entries to `show` at once, and counts what happened."""

    def __init__(self, clock: Callable[[], float], show: Callable[[Entry], None]) -> None:
        self._clock = clock
        self._show = show
        self._began = clock()
        self.events: Counter[str] = Counter()
        """What the demo did to the system, and how often."""
        self.problems: list[str] = []

    def step(self, event: str, text: str) -> None:
        """The demo does something: `event` for the summary (`picker-1 restarted`), `text` for now."""
        self.events[event] += 1
        self._write("step", text)

    def seen(self, text: str) -> None:
        """Something happens that should."""
        self._write("seen", text)

    def problem(self, text: str) -> None:
        """Something is wrong, so the demo fails."""
        self.problems.append(text)
        self._write("bad", text)

    def failure(self, text: str) -> None:
        """A request failed; the tally counts it."""
        self._write("bad", text)

    @property
    def elapsed(self) -> float:
        """Seconds since the load began."""
        return self._clock() - self._began

    def _write(self, tone: Tone, text: str) -> None:
        self._show(Entry(self.elapsed, tone, text))

    def __repr__(self) -> str:
        return f"<Journal {self.events.total()} events, {len(self.problems)} problems>"
