"""Whether a standby would publish something else than the leader, because the two read different files.

Readers don't notice while the leader stays the same: the facts would change with the lease.
"""

from collections.abc import Collection, Iterator, Mapping
from heapq import nsmallest
from itertools import chain

import structlog
from msgspec.structs import replace

from shared.bus.facts import Put
from shared.model import Configuration, Fact
from shared.tasks import in_turns

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

    async def compare(
        self, ours: Mapping[str, Fact], theirs: Mapping[str, Put], unmanaged: Collection[str], now: float
    ) -> None:
        """`ours` is what this watcher would publish, `theirs` what is published, both by key. This watcher would leave
        `unmanaged` keys as they are. Others run meanwhile, and may change both."""
        differing = [key async for key in in_turns(_differing(ours, theirs, frozenset(unmanaged))) if key is not None]
        if not differing:
            self.clear()
            return
        if self._since is None:
            self._since = now
        if now - self._since < self._settling:
            return
        first = nsmallest(_SHOWN, differing)
        shown = ", ".join(first) + (", …" if len(differing) > _SHOWN else "")
        self.reason = f"this watcher would publish other facts than the leader: {shown}"
        if not self._logged:
            self._logged = True
            log.warning("facts.disagree", facts=len(differing), such_as=first)

    def clear(self) -> None:
        """They agree, or there is nothing to compare with."""
        self._since, self._logged, self.reason = None, False, None

    def __repr__(self) -> str:
        return f"<Disagreement {self.reason or 'none'}>"


def _differing(ours: Mapping[str, Fact], theirs: Mapping[str, Put], unmanaged: frozenset[str]) -> Iterator[str | None]:
    """The keys whose facts differ, and None for each other key."""
    for key in chain(list(ours), (key for key in list(theirs) if key not in ours)):
        put = theirs.get(key)
        same = key in unmanaged or _comparable(ours.get(key)) == _comparable(put.fact if put else None)
        yield None if same else key


def _comparable(fact: Fact | None) -> Fact | None:
    """A configuration may be in files of different names."""
    return replace(fact, origin="") if isinstance(fact, Configuration) else fact
