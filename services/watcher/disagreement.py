"""Whether a standby would publish something else than the leader, because the two read different files.

Readers don't notice while the leader stays the same: the facts would change with the lease.
"""

from collections.abc import Collection, Mapping

import structlog
from msgspec.structs import replace

from shared.model import Configuration, Fact

log = structlog.get_logger(__name__)

SETTLING = 10.0
"""Seconds for which both may differ while a change reaches one of them before the other."""
CHECK = 2.0
"""Seconds between two comparisons."""
_SHOWN = 3


class Disagreement:
    """Compares repeatedly. Pure: time is passed in."""

    def __init__(self, settling: float = SETTLING) -> None:
        self._settling = settling
        self._since: float | None = None
        self._logged = False
        self.reason: str | None = None
        """How they differ, once they have differed for long enough."""

    def compare(
        self, ours: Mapping[str, Fact], theirs: Mapping[str, Fact], unmanaged: Collection[str], now: float
    ) -> None:
        """`ours` is what this watcher would publish, `theirs` what is published, both by key. This watcher would leave
        `unmanaged` keys as they are."""
        keys = (ours.keys() | theirs.keys()).difference(unmanaged)
        differing = sorted(key for key in keys if _comparable(ours.get(key)) != _comparable(theirs.get(key)))
        if not differing:
            self.clear()
            return
        if self._since is None:
            self._since = now
        if now - self._since < self._settling:
            return
        shown = ", ".join(differing[:_SHOWN]) + (", …" if len(differing) > _SHOWN else "")
        self.reason = f"this watcher would publish other facts than the leader: {shown}"
        if not self._logged:
            self._logged = True
            log.warning("facts.disagree", facts=len(differing), such_as=differing[:_SHOWN])

    def clear(self) -> None:
        """They agree, or there is nothing to compare with."""
        self._since, self._logged, self.reason = None, False, None

    def __repr__(self) -> str:
        return f"<Disagreement {self.reason or 'none'}>"


def _comparable(fact: Fact | None) -> Fact | None:
    """A configuration may be in files of different names."""
    return replace(fact, origin="") if isinstance(fact, Configuration) else fact
