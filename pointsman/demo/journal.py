"""What the demo says while it runs: short entries in plain words, each with the time since the load began."""

from collections import Counter
from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

Tone: TypeAlias = Literal["step", "seen", "bad"]
"""What the demo does, what one sees of it, and what is not as it should be."""


class Entry(Struct, frozen=True):
    """One thing said."""

    at: float
    """Seconds since the load began."""
    tone: Tone
    text: str


class Journal:
    """Entries in order; each is also given to `tell`, at once."""

    def __init__(self, clock: Callable[[], float], tell: Callable[[Entry], None]) -> None:
        self._clock = clock
        self._tell = tell
        self._began = clock()
        self.events: Counter[str] = Counter()
        """What was done to the system, and how often."""
        self.bad: list[str] = []

    def step(self, event: str, text: str) -> None:
        """The demo does something: `event` in the summary's words (`picker-1 restarted`), `text` for now."""
        self.events[event] += 1
        self._say("step", text)

    def seen(self, text: str) -> None:
        """What comes of it."""
        self._say("seen", text)

    def wrong(self, text: str) -> None:
        """Something isn't as it should be; the demo then doesn't end well."""
        self.bad.append(text)
        self._say("bad", text)

    def failed(self, text: str) -> None:
        """A request failed; the tally counts those."""
        self._say("bad", text)

    @property
    def elapsed(self) -> float:
        """Seconds since the load began."""
        return self._clock() - self._began

    def _say(self, tone: Tone, text: str) -> None:
        self._tell(Entry(self.elapsed, tone, text))

    def __repr__(self) -> str:
        return f"<Journal {self.events.total()} events, {len(self.bad)} bad>"
