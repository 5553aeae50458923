"""Which decode servers had a helper fail them: pairs that aren't used together for a while.

Helpers are the prefill and encode servers that a decode server asks. Collectors may reach one that a decode server
can't reach, and either of the two may be the cause. Without the pair, both go on with others.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import takewhile

ACCUSERS = 2
"""Decode servers that a helper fails, from which on its good scrapes say nothing."""
MAX_PAIRS = 10_000
"""Pairs that failed, and that refused requests. Of more, the oldest are forgotten."""


class FailedPairs:
    """Servers by their ids. A pair lasts for `expiry` seconds after its last failure."""

    def __init__(self, expiry: float) -> None:
        self._expiry = expiry
        self._since: dict[tuple[str, str], float] = {}
        """The last failure of a decode server with a helper, oldest first."""
        self._helpers = defaultdict[str, set[str]](set)
        """By decode server."""
        self._decode = defaultdict[str, set[str]](set)
        """By helper."""
        self._accusers = defaultdict[str, set[str]](set)
        """By helper: decode servers that failed since it last worked for any."""
        self._unavailable: dict[tuple[str, str], tuple[int, float]] = {}
        """How many more requests a pair refused than it answered without an error, and when it last refused one; the
        oldest first."""
        self._in_all: dict[str, set[str]] = {}
        """By decode server: the helpers that took part in each request that it refused since its last answer without an
        error. Forgotten with any of its pairs that refused."""

    def add(self, decode: str, helper: str, now: float) -> None:
        """A request of this decode server failed in which the helper took part."""
        self._since.pop((decode, helper), None)
        if len(self._since) >= MAX_PAIRS:
            self._drop(*next(iter(self._since)))
        self._since[decode, helper] = now
        self._helpers[decode].add(helper)
        self._decode[helper].add(decode)
        self._accusers[helper].add(decode)

    def refused(self, decode: str, helpers: Collection[str], now: float) -> dict[str, int]:
        """This decode server refused a request in which these helpers took part. Returns for each how many more
        requests of the pair were refused than had an answer without an error."""
        counts: dict[str, int] = {}
        for helper in helpers:
            count, _ = self._unavailable.pop((decode, helper), (0, 0.0))
            if len(self._unavailable) >= MAX_PAIRS:
                self._drop_unavailable(*next(iter(self._unavailable)))
            self._unavailable[decode, helper] = count + 1, now
            counts[helper] = count + 1
        self._in_all[decode] = self._in_all.get(decode, set(helpers)).intersection(helpers)
        return counts

    def refuses_alone(self, decode: str) -> bool:
        """Whether this decode server has refused requests that have no helper in common, and answered none
        meanwhile."""
        return self._in_all.get(decode) == set()

    def worked(self, decode: str, helpers: Iterable[str]) -> None:
        """A request in which these helpers took part had an answer without an error. `decode` is empty if it isn't
        known."""
        self._in_all.pop(decode, None)
        for helper in helpers:
            self._accusers.pop(helper, None)
            refused, since = self._unavailable.get((decode, helper), (0, 0.0))
            if refused > 1:
                self._unavailable[decode, helper] = refused - 1, since
            elif refused:
                del self._unavailable[decode, helper]

    def of(self, decode: str) -> Collection[str]:
        """The helpers that this decode server isn't to use."""
        return self._helpers.get(decode, ())

    def disputed(self) -> Collection[str]:
        """The helpers that several decode servers aren't to use."""
        return [helper for helper, decode in self._decode.items() if len(decode) >= ACCUSERS]

    def condemn(self, helper: str) -> bool:
        """Whether it failed several decode servers, and has worked for none since."""
        return self.accusers(helper) >= ACCUSERS

    def accusers(self, helper: str) -> int:
        """How many decode servers it failed since it last worked for any."""
        return len(self._accusers.get(helper, ()))

    def forget(self, helper: str) -> None:
        """It was down."""
        for decode in list(self._decode.get(helper, ())):
            self._drop(decode, helper)

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
            for decode, helper in [pair for pair in pairs if pair[0] not in ids or pair[1] not in ids]:
                drop(decode, helper)

    def _drop(self, decode: str, helper: str) -> None:
        del self._since[decode, helper]
        _discard(self._helpers, decode, helper)
        _discard(self._decode, helper, decode)
        _discard(self._accusers, helper, decode)

    def _drop_unavailable(self, decode: str, helper: str) -> None:
        del self._unavailable[decode, helper]
        self._in_all.pop(decode, None)

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
