"""Which acts were under way when, to name those that a fault may come from."""

import math
import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Entry:
    """One act. Times are monotonic seconds."""

    act: str
    began: float
    ended: float = math.inf


@dataclass
class Breach:
    """Something that must not happen, how often it did, and the acts that were under way then."""

    what: str
    acts: list[str]
    times: int = 1


@dataclass
class Journal:
    """All acts, in the order in which they began, and all breaches."""

    entries: list[Entry] = field(default_factory=list)
    breaches: dict[str, Breach] = field(default_factory=dict)

    def begin(self, act: str) -> Entry:
        entry = Entry(act, time.monotonic())
        self.entries.append(entry)
        return entry

    def under_way(self, since: float, until: float) -> list[str]:
        """The acts that were, in these seconds."""
        return sorted({entry.act for entry in self.entries if entry.began <= until and entry.ended >= since})

    def breach(self, what: str, since: float | None = None, until: float | None = None) -> None:
        """Note one; by default it happens now. Equal ones are counted."""
        if (known := self.breaches.get(what)) is not None:
            known.times += 1
            return
        until = time.monotonic() if until is None else until
        self.breaches[what] = Breach(what, self.under_way(until - 1.0 if since is None else since, until))

    def counts(self) -> Counter[str]:
        """Acts by their front."""
        return Counter(entry.act.partition(".")[0] for entry in self.entries)
