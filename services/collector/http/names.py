"""The addresses of host names, for connections to model servers.

An event loop looks up names in a few threads that the whole process shares, uvloop in four. A look-up can't be
interrupted, and may take half a minute. So a few names that hang would keep the process from connecting to anything,
also to NATS. These look-ups have threads of their own, and a name has one look-up at a time.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from shared.daemon_threads import DaemonThreads
from shared.model import is_ip
from shared.system_resolver import addresses_of

THREADS = 32
"""For names that haven't answered yet. Those that hang occupy half of them at most, once it is known that they do."""
MAX_KNOWN = 10_000
"""Names of which it is known that they answer, or hang. Beyond it, all are new."""
MAX_ADDRESSES = 4
"""Addresses of a name that are tried."""


class Names:
    """The look-ups of one process."""

    def __init__(self, lookup: Callable[[str], list[str]] | None = None) -> None:
        """`lookup` blocks; by default, it is the system's."""
        self._lookup = lookup or _addresses
        self._threads = DaemonThreads(THREADS, "look-up")
        self._threads_of_answered = DaemonThreads(THREADS, "look-up")
        self._under_way: dict[str, asyncio.Task[list[str]]] = {}
        self._begun: set[str] = set()
        """Those of them that have a thread."""
        self._answered: set[str] = set()
        self._slow: set[str] = set()
        """Those whose last look-up took longer than somebody waited, even if it succeeded then."""
        self._given_up: set[str] = set()
        """Those that are being looked up and for which somebody has waited in vain."""

    @property
    def under_way(self) -> int:
        """Names that are being looked up, or are about to be."""
        return len(self._under_way)

    async def addresses(self, host: str) -> Sequence[str]:
        """Where to connect to, the preferred address first; an address is its own. Raises OSError, UnicodeError. A
        look-up goes on when nobody waits for it any more."""
        if is_ip(host):
            return (host,)
        look_up = self._under_way.get(host)
        if look_up is None:
            if host in self._slow and len(self._slow & self._under_way.keys()) >= THREADS // 2:
                raise OSError("the look-up of its name hung, and those of others still do")
            threads = self._threads_of_answered if host in self._answered else self._threads
            look_up = self._under_way[host] = asyncio.create_task(threads.run(partial(self._run, host)))
            look_up.add_done_callback(partial(self._ended, host))
        try:
            return await asyncio.shield(look_up)
        except asyncio.CancelledError:
            if host in self._begun:
                self._answered.discard(host)
                self._given_up.add(host)
                self._note(host, self._slow)
            raise

    def _run(self, host: str) -> list[str]:
        """In a thread."""
        self._begun.add(host)
        return self._lookup(host)

    def _ended(self, host: str, look_up: asyncio.Task[list[str]]) -> None:
        del self._under_way[host]
        self._begun.discard(host)
        given_up = host in self._given_up
        self._given_up.discard(host)
        if not (look_up.cancelled() or look_up.exception() or given_up):
            self._slow.discard(host)
            self._note(host, self._answered)

    def _note(self, host: str, hosts: set[str]) -> None:
        if len(hosts) >= MAX_KNOWN:
            hosts.clear()
        hosts.add(host)

    def __repr__(self) -> str:
        return f"<Names {self.under_way} looked up, {len(self._slow)} slow>"


def _addresses(host: str) -> list[str]:
    return addresses_of(host)[:MAX_ADDRESSES]
