"""The addresses of host names, for connections to model servers.

An event loop looks up names in a few threads that the whole process shares, uvloop in four. A look-up can't be
interrupted, and may take half a minute. So a few names that hang would keep the process from connecting to anything,
also to NATS. These look-ups have threads of their own, and a name has one look-up at a time. How its last look-up ended
decides with which other names it shares threads, so names that hang, or take long, keep nobody else waiting.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from shared.daemon_threads import DaemonThreads
from shared.model import is_ip
from shared.system_resolver import addresses_of

THREADS = 32
"""For new names, and as many for those that have answered in time."""
FEW = 8
"""Threads for names that have answered too late, and as many for those that haven't answered then."""
MAX_KNOWN = 10_000
"""Names of which it is known how they answer; of more, those that were looked up last."""
ABANDONED = 60.0
"""Seconds after which a look-up that nobody has asked for since isn't begun any more."""
MAX_ADDRESSES = 4
"""Addresses of a name that are tried."""


class Names:
    """The look-ups of one process."""

    def __init__(self, lookup: Callable[[str], list[str]] | None = None) -> None:
        """`lookup` blocks; by default, it is the system's."""
        self._lookup = lookup or _addresses
        self._new, self._in_time, self._late, self._hung = (
            DaemonThreads(limit, "look-up") for limit in (THREADS, THREADS, FEW, FEW)
        )
        self._threads: dict[str, DaemonThreads] = {}
        """Which ones the next look-up of a name uses; those of a new one aren't in it."""
        self._under_way: dict[str, asyncio.Task[list[str]]] = {}
        self._asked: dict[str, float] = {}
        """When each of them was asked for."""
        self._begun: set[str] = set()
        """Those of them that have a thread."""
        self._given_up: set[str] = set()
        """Those of them that have one, and for which somebody has waited in vain."""

    @property
    def under_way(self) -> int:
        """Names that are being looked up, or are about to be."""
        return len(self._under_way)

    async def addresses(self, host: str) -> Sequence[str]:
        """Where to connect to, the preferred address first; an address is its own. Raises OSError, UnicodeError. A
        look-up goes on when nobody waits for it any more."""
        if is_ip(host):
            return (host,)
        self._asked[host] = time.monotonic()
        look_up = self._under_way.get(host)
        if look_up is None:
            threads = self._threads.get(host, self._new)
            look_up = self._under_way[host] = asyncio.create_task(threads.run(partial(self._run, host)))
            look_up.add_done_callback(partial(self._ended, host))
        try:
            return await asyncio.shield(look_up)
        except asyncio.CancelledError:
            if host in self._begun:
                self._given_up.add(host)
            raise

    def _run(self, host: str) -> list[str]:
        """In a thread."""
        if time.monotonic() - self._asked[host] > ABANDONED:
            raise OSError("nobody asks for it any more")
        self._begun.add(host)
        return self._lookup(host)

    def _ended(self, host: str, look_up: asyncio.Task[list[str]]) -> None:
        del self._under_way[host], self._asked[host]
        self._begun.discard(host)
        late = host in self._given_up
        self._given_up.discard(host)
        answered = not (look_up.cancelled() or look_up.exception())
        if not answered and not late:
            return
        self._threads.pop(host, None)
        self._threads[host] = (self._late if late else self._in_time) if answered else self._hung
        if len(self._threads) > MAX_KNOWN:
            del self._threads[next(iter(self._threads))]

    def __repr__(self) -> str:
        return f"<Names {self.under_way} looked up>"


def _addresses(host: str) -> list[str]:
    return addresses_of(host)[:MAX_ADDRESSES]
