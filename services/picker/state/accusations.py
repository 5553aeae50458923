"""What decode servers said of prefill servers by a 502, though the prefill servers' next scrapes were good.

Either the decode server fails, or decode servers can't reach a prefill server that collectors reach. Who else says so,
and for whom the prefill server works, tells which.
"""

from collections import defaultdict

ENOUGH = 2
"""Decode servers that accuse a prefill server, or prefill servers that a decode server accuses: with a single one, the
other side may have restarted at once."""

_Times = defaultdict[str, dict[str, float]]


class Accusations:
    """Servers by their ids. An accusation holds for `expiry` seconds."""

    def __init__(self, expiry: float) -> None:
        self._expiry = expiry
        self._accused: _Times = defaultdict(dict)
        """By decode server: when it last accused each prefill server."""
        self._accusers: _Times = defaultdict(dict)
        """By prefill server: when each decode server last accused it. Empty since it has worked for one."""

    def add(self, decode: str, prefill: str, now: float) -> None:
        """The decode server answered 502, and a scrape of the prefill server that began after it was good."""
        self._accused[decode][prefill] = self._accusers[prefill][decode] = now

    def worked(self, prefill: str) -> None:
        """A request that this server was to prefill had an answer without an error."""
        self._accusers.pop(prefill, None)

    def believes(self, decode: str) -> bool:
        """Whether the next 502 of this decode server is a sign that the prefill server is down: it isn't if it alone
        accuses several."""
        accused = self._accused.get(decode, ())
        return sum(self._accusers.get(prefill, {}).keys() <= {decode} for prefill in accused) < ENOUGH

    def condemns(self, prefill: str) -> bool:
        """Whether good scrapes say nothing of this prefill server: several decode servers accuse it."""
        return len(self._accusers.get(prefill, ())) >= ENOUGH

    def expire(self, now: float) -> None:
        """Forget old ones."""
        for times in (self._accused, self._accusers):
            for id, others in list(times.items()):
                for other, at in list(others.items()):
                    if at < now - self._expiry:
                        del others[other]
                if not others:
                    del times[id]

    def keep(self, ids: set[str]) -> None:
        """Forget all servers but these."""
        for times in (self._accused, self._accusers):
            for id, others in list(times.items()):
                if id not in ids:
                    del times[id]
                else:
                    times[id] = {other: at for other, at in others.items() if other in ids}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._accused)

    def __repr__(self) -> str:
        return f"<Accusations by {list(self._accused)} of {list(self._accusers)}>"
