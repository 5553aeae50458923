"""Whether a watcher on standby would publish something else than the one that leads: two that read different files.

Readers don't see it while one of them leads: the set would only change with the lease.
"""

from collections.abc import Collection, Mapping

import structlog
from msgspec.structs import replace

from shared.model import Configuration, Fact

log = structlog.get_logger(__name__)

SETTLING = 10.0
"""Seconds for which both may differ while a change comes to one of them before the other."""
CHECK = 2.0
"""Seconds between two comparisons."""
_NAMED = 3


class Disagreement:
    """Told again and again what both say, and when; pure."""

    def __init__(self, settling: float = SETTLING) -> None:
        self._settling = settling
        self._since: float | None = None
        self._said = False
        self.reason: str | None = None
        """How they differ, once they do for long enough."""

    def compare(self, ours: Mapping[str, Fact], theirs: Mapping[str, Fact], kept: Collection[str], now: float) -> None:
        """`ours` is what this watcher would publish, `theirs` what is published, both by key; what is `kept`, this one
        would leave as it is."""
        keys = (ours.keys() | theirs.keys()).difference(kept)
        differing = sorted(key for key in keys if _compared(ours.get(key)) != _compared(theirs.get(key)))
        if not differing:
            self.clear()
            return
        if self._since is None:
            self._since = now
        if now - self._since < self._settling:
            return
        named = ", ".join(differing[:_NAMED]) + (", …" if len(differing) > _NAMED else "")
        self.reason = f"this watcher would publish something else than the one that leads: {named}"
        if not self._said:
            self._said = True
            log.warning("facts.disagree", facts=len(differing), such_as=differing[:_NAMED])

    def clear(self) -> None:
        """They agree, or there is nobody to agree with."""
        self._since, self._said, self.reason = None, False, None

    def __repr__(self) -> str:
        return f"<Disagreement {self.reason or 'none'}>"


def _compared(fact: Fact | None) -> Fact | None:
    """A configuration may be in files of different names."""
    return replace(fact, origin="") if isinstance(fact, Configuration) else fact
