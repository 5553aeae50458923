"""Which decode servers had a prefill server fail them: pairs that aren't used together for a while.

Collectors may reach a prefill server that a decode server can't reach, and either of the two may be the cause. Without
the pair, both go on with others.
"""

from collections import defaultdict
from collections.abc import Collection

ACCUSERS = 2
"""Decode servers whose prefill server fails them, from which on its good scrapes say nothing."""


class FailedPairs:
    """Servers by their ids. A pair lasts for `expiry` seconds after its last failure."""

    def __init__(self, expiry: float) -> None:
        self._expiry = expiry
        self._since: dict[tuple[str, str], float] = {}
        """The last failure of a decode server with a prefill server, oldest first."""
        self._prefill = defaultdict[str, set[str]](set)
        """By decode server."""
        self._accusers = defaultdict[str, set[str]](set)
        """By prefill server: decode servers that failed since it last worked for any."""

    def add(self, decode: str, prefill: str, now: float) -> None:
        """A request of this decode server failed that the prefill server was to prefill."""
        self._since.pop((decode, prefill), None)
        self._since[decode, prefill] = now
        self._prefill[decode].add(prefill)
        self._accusers[prefill].add(decode)

    def worked(self, prefill: str) -> None:
        """A request that this server was to prefill had an answer without an error."""
        self._accusers.pop(prefill, None)

    def of(self, decode: str) -> Collection[str]:
        """The prefill servers that this decode server isn't to use."""
        return self._prefill.get(decode, ())

    def condemn(self, prefill: str) -> bool:
        """Whether it failed several decode servers, and has worked for none since."""
        return len(self._accusers.get(prefill, ())) >= ACCUSERS

    def forget(self, prefill: str) -> None:
        """It was down."""
        for decode, other in [pair for pair in self._since if pair[1] == prefill]:
            self._drop(decode, other)

    def expire(self, now: float) -> None:
        """Forget old ones."""
        while self._since:
            pair, since = next(iter(self._since.items()))
            if since >= now - self._expiry:
                break
            self._drop(*pair)

    def keep(self, ids: Collection[str]) -> None:
        """Forget those of all servers but these."""
        for decode, prefill in [pair for pair in self._since if pair[0] not in ids or pair[1] not in ids]:
            self._drop(decode, prefill)

    def _drop(self, decode: str, prefill: str) -> None:
        del self._since[decode, prefill]
        for others, id, other in ((self._prefill, decode, prefill), (self._accusers, prefill, decode)):
            if id in others:
                others[id].discard(other)
                if not others[id]:
                    del others[id]

    def __len__(self) -> int:
        return len(self._since)

    def __repr__(self) -> str:
        return f"<FailedPairs {list(self._since)}>"
