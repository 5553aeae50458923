"""Which decode servers had a prefill server fail them: pairs that aren't used together for a while.

Collectors may reach a prefill server that a decode server can't reach, and either of the two may be the cause. Without
the pair, both go on with others.
"""

from collections import defaultdict
from collections.abc import Collection
from itertools import takewhile

ACCUSERS = 2
"""Decode servers whose prefill server fails them, from which on its good scrapes say nothing."""
MAX_PAIRS = 10_000
"""Pairs that failed, and that refused requests. Of more, the oldest are forgotten."""


class FailedPairs:
    """Servers by their ids. A pair lasts for `expiry` seconds after its last failure."""

    def __init__(self, expiry: float) -> None:
        self._expiry = expiry
        self._since: dict[tuple[str, str], float] = {}
        """The last failure of a decode server with a prefill server, oldest first."""
        self._prefill = defaultdict[str, set[str]](set)
        """By decode server."""
        self._decode = defaultdict[str, set[str]](set)
        """By prefill server."""
        self._accusers = defaultdict[str, set[str]](set)
        """By prefill server: decode servers that failed since it last worked for any."""
        self._unavailable: dict[tuple[str, str], tuple[int, float]] = {}
        """How many more requests a pair refused than it answered without an error, and when it last refused one; the
        oldest first."""
        self._refused_with = defaultdict[str, set[str]](set)
        """By decode server: the prefill servers of the requests that it refused since its last answer without an
        error."""

    def add(self, decode: str, prefill: str, now: float) -> None:
        """A request of this decode server failed that the prefill server was to prefill."""
        self._since.pop((decode, prefill), None)
        if len(self._since) >= MAX_PAIRS:
            self._drop(*next(iter(self._since)))
        self._since[decode, prefill] = now
        self._prefill[decode].add(prefill)
        self._decode[prefill].add(decode)
        self._accusers[prefill].add(decode)

    def unavailable(self, decode: str, prefill: str, now: float) -> int:
        """A request of this decode server was refused that the prefill server was to prefill. Returns how many more
        of the pair were refused than had an answer without an error."""
        refused, _ = self._unavailable.pop((decode, prefill), (0, 0.0))
        if len(self._unavailable) >= MAX_PAIRS:
            self._drop_unavailable(*next(iter(self._unavailable)))
        self._refused_with[decode].add(prefill)
        self._unavailable[decode, prefill] = refused + 1, now
        return refused + 1

    def refuses_alone(self, decode: str) -> bool:
        """Whether this decode server has refused requests with several prefill servers, and answered none meanwhile."""
        return len(self._refused_with.get(decode, ())) > 1

    def worked(self, decode: str, prefill: str) -> None:
        """A request had an answer without an error. `decode` is empty if it isn't known, and `prefill` if there was
        none."""
        self._accusers.pop(prefill, None)
        self._refused_with.pop(decode, None)
        refused, since = self._unavailable.get((decode, prefill), (0, 0.0))
        if refused > 1:
            self._unavailable[decode, prefill] = refused - 1, since
        elif refused:
            del self._unavailable[decode, prefill]

    def of(self, decode: str) -> Collection[str]:
        """The prefill servers that this decode server isn't to use."""
        return self._prefill.get(decode, ())

    def disputed(self) -> Collection[str]:
        """The prefill servers that several decode servers aren't to use."""
        return [prefill for prefill, decode in self._decode.items() if len(decode) >= ACCUSERS]

    def condemn(self, prefill: str) -> bool:
        """Whether it failed several decode servers, and has worked for none since."""
        return len(self._accusers.get(prefill, ())) >= ACCUSERS

    def forget(self, prefill: str) -> None:
        """It was down."""
        for decode in list(self._decode.get(prefill, ())):
            self._drop(decode, prefill)

    def expire(self, now: float) -> None:
        """Forget old ones."""
        before = now - self._expiry
        for pair, _ in list(takewhile(lambda pair: pair[1] < before, self._since.items())):
            self._drop(*pair)
        for pair, _ in list(takewhile(lambda pair: pair[1][1] < before, self._unavailable.items())):
            self._drop_unavailable(*pair)

    def keep(self, ids: Collection[str]) -> None:
        """Forget those of all servers but these."""
        for pairs, drop in ((self._since, self._drop), (self._unavailable, self._drop_unavailable)):
            for decode, prefill in [pair for pair in pairs if pair[0] not in ids or pair[1] not in ids]:
                drop(decode, prefill)

    def _drop(self, decode: str, prefill: str) -> None:
        del self._since[decode, prefill]
        _discard(self._prefill, decode, prefill)
        _discard(self._decode, prefill, decode)
        _discard(self._accusers, prefill, decode)

    def _drop_unavailable(self, decode: str, prefill: str) -> None:
        del self._unavailable[decode, prefill]
        _discard(self._refused_with, decode, prefill)

    def __bool__(self) -> bool:
        """Whether answers without an error may change anything."""
        return bool(self._since or self._unavailable)

    def __repr__(self) -> str:
        return f"<FailedPairs {list(self._since)}>"


def _discard(others: dict[str, set[str]], id: str, other: str) -> None:
    if id in others:
        others[id].discard(other)
        if not others[id]:
            del others[id]
