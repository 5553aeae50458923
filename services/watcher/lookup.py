"""Looks host names up when they are due, and passes on what changed: the I/O of `services.watcher.resolve`."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import structlog

from services.watcher.metrics import WatcherMetrics
from services.watcher.resolve import Names
from shared.model import Endpoint

log = structlog.get_logger(__name__)

AT_A_TIME = 16
"""Host names that are looked up at a time."""


class Lookup(Protocol):
    async def __call__(self, host: str) -> list[str]:
        """All addresses of a name. Raises OSError (socket.gaierror), UnicodeError or TimeoutError."""


class SystemLookup:
    """The machine's own resolver: /etc/hosts, DNS, whatever it is set up for; with a limit of time."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout

    async def __call__(self, host: str) -> list[str]:
        async with asyncio.timeout(self._timeout):
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return [str(sockaddr[0]) for *_, sockaddr in found]

    def __repr__(self) -> str:
        return f"<SystemLookup timeout={self._timeout:g}>"


class Resolver:
    """Keeps `names` up to date; calls `on_change` when an address is another one."""

    def __init__(
        self,
        names: Names,
        lookup: Lookup,
        on_change: Callable[[], None],
        metrics: WatcherMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.names = names
        self._lookup = lookup
        self._on_change = on_change
        self._metrics = metrics
        self._clock = clock
        self._wake = asyncio.Event()

    def follow(self, endpoints: Iterable[Endpoint]) -> None:
        """Look up the names of these endpoints from now on."""
        self.names.follow(endpoints)
        self._wake.set()

    async def look_up_due(self) -> bool:
        """One round; whether an address changed."""
        return await self._look_up(self.names.due(self._clock()))

    async def run(self) -> None:
        """Look names up when they are due, for ever."""
        while True:
            self._wake.clear()
            due = self.names.next_due()
            try:
                async with asyncio.timeout(None if due is None else max(due - self._clock(), 0.0)):
                    await self._wake.wait()
            except TimeoutError:
                pass
            if await self.look_up_due():
                self._on_change()

    async def _look_up(self, hosts: Sequence[str]) -> bool:
        slots = asyncio.Semaphore(AT_A_TIME)

        async def one(host: str) -> bool:
            async with slots:
                try:
                    addresses = await self._lookup(host)
                except (OSError, UnicodeError, TimeoutError) as error:
                    self._failed(host, str(error) or "no answer in time")
                    return False
            return self._answered(host, addresses)

        return any(await asyncio.gather(*map(one, hosts)))

    def _answered(self, host: str, addresses: Sequence[str]) -> bool:
        changed = self.names.answered(host, addresses, self._clock())
        name = self.names.names.get(host)
        if name is not None and name.error:
            self._say_failed(host, name.error)
        elif changed and name is not None:
            log.info("name.resolved", host=host, address=name.address)
            if len(name.addresses) > 1:
                log.warning("name.ambiguous", host=host, used=name.address, all=list(name.addresses))
        return changed

    def _failed(self, host: str, reason: str) -> None:
        known = self.names.names.get(host)
        self.names.failed(host, reason, self._clock())
        if known is not None and known.error != reason:
            self._say_failed(host, reason)
        self._metrics.lookup_failures.inc()

    def _say_failed(self, host: str, reason: str) -> None:
        kept = self.names.names[host].address
        log.warning("name.not_resolved", host=host, reason=reason, kept=kept or None)

    def __repr__(self) -> str:
        return f"<Resolver {self.names!r} by {self._lookup!r}>"
