"""Looks host names up when they are due, and passes on what changed: the I/O of `services.watcher.resolve`."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

import structlog

from services.watcher.metrics import WatcherMetrics
from services.watcher.resolve import Names
from shared.model import Endpoint

log = structlog.get_logger(__name__)

SLOW_SHARE = 4
"""One in so many places may be a name's that took too long the last time."""
SLOW_KEPT = 10_000
"""Names of which it is kept in mind that they took too long."""
GATHER = 0.02
"""Seconds that a changed address waits for others, so that they are one change."""


class Lookup(Protocol):
    async def __call__(self, host: str) -> list[str]:
        """All addresses of a name. Raises OSError (socket.gaierror), UnicodeError or TimeoutError."""


class SystemLookup:
    """The machine's own resolver: /etc/hosts, DNS, whatever it is set up for; with a limit of time.

    A look-up can't be interrupted, and one that gets no answer takes as long as the resolver likes. So each has a
    thread of its own, for which nobody waits at the end of the process: the event loop's threads are left to others,
    such as the connection to NATS. There is one look-up of a name at a time, however long it takes. Names that took too
    long the last time share a part of the places: while DNS doesn't know them, it may know others.
    """

    def __init__(self, timeout: float, at_a_time: int = 64) -> None:
        """`timeout`: seconds, from the moment at which a place is free."""
        self._timeout = timeout
        self._places = asyncio.Semaphore(at_a_time)
        self._slow_places = asyncio.Semaphore(max(1, at_a_time // SLOW_SHARE))
        self._slow: dict[str, None] = {}
        self._asked: dict[str, asyncio.Task[list[Any]]] = {}
        """By name, also those for which nobody waits any more."""

    async def __call__(self, host: str) -> list[str]:
        asked = self._asked.get(host)
        if asked is None:
            begun = asyncio.Event()
            asked = self._asked[host] = asyncio.create_task(self._ask(host, begun), name=f"look-up of {host}")
            asked.add_done_callback(lambda task: self._ended(host, task))
            await begun.wait()
        self._slow.pop(host, None)
        try:
            async with asyncio.timeout(self._timeout):
                found = await asyncio.shield(asked)
        except TimeoutError:
            self._note_slow(host)
            raise
        return [str(sockaddr[0]) for *_, sockaddr in found]

    async def _ask(self, host: str, begun: asyncio.Event) -> list[Any]:
        async with AsyncExitStack() as stack:
            if host in self._slow:
                await stack.enter_async_context(self._slow_places)
            await stack.enter_async_context(self._places)
            begun.set()
            return await _in_thread(lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM), f"dns {host}")

    def _ended(self, host: str, task: asyncio.Task[list[Any]]) -> None:
        del self._asked[host]
        if not task.cancelled():
            task.exception()  # nobody may be waiting for it

    def _note_slow(self, host: str) -> None:
        self._slow[host] = None
        if len(self._slow) > SLOW_KEPT:
            del self._slow[next(iter(self._slow))]

    def __repr__(self) -> str:
        return f"<SystemLookup timeout={self._timeout:g}, {len(self._asked)} under way>"


async def _in_thread(work: Callable[[], list[Any]], name: str) -> list[Any]:
    """The work's result, from a thread that doesn't keep the process from ending. Raises what it raises, and OSError
    where there can't be another thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[Any]] = loop.create_future()

    def settle(result: list[Any], error: Exception | None) -> None:
        if future.done():
            return  # cancelled
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result: list[Any] = []
        failure: Exception | None = None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - the top of the thread: it is the caller's
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:
            pass  # the loop has ended meanwhile

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise OSError(str(error)) from error
    return await future


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
        self._asking: dict[str, asyncio.Task[None]] = {}
        """Look-ups under way, by name."""
        self._changed = False
        """An address is another one, and nobody was told."""

    def follow(self, endpoints: Iterable[Endpoint]) -> None:
        """Look up the names of these endpoints from now on."""
        self.names.follow(endpoints)
        self._wake.set()

    async def look_up_due(self, within: float | None = None) -> bool:
        """Look up the names that are due, and wait for the answers, at most `within` seconds: what is missing then
        comes while `run` runs. Whether an address changed."""
        self._ask_due()
        if self._asking:
            await asyncio.wait(self._asking.values(), timeout=within)
        changed, self._changed = self._changed, False
        return changed

    async def run(self) -> None:
        """Look names up when they are due, for ever. Each answer counts when it comes: a name that hangs delays no
        other."""
        try:
            while True:
                self._wake.clear()
                if self._changed:
                    await asyncio.sleep(GATHER)
                    self._changed = False
                    self._on_change()
                self._ask_due()
                due = self.names.next_due(self._asking)
                try:
                    async with asyncio.timeout(None if due is None else max(due - self._clock(), 0.0)):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        finally:
            for task in self._asking.values():
                task.cancel()

    def _ask_due(self) -> None:
        for host in self.names.due(self._clock()):
            if host not in self._asking:
                self._asking[host] = asyncio.create_task(self._look_up(host), name=f"name {host}")

    async def _look_up(self, host: str) -> None:
        try:
            self._changed |= self._answered(host, await self._lookup(host))
        except TimeoutError:
            self._failed(host, "no answer in time")
        except Exception as error:  # noqa: BLE001 - the top of the task: no name may cost the others
            self._failed(host, str(error) or type(error).__name__)
        finally:
            del self._asking[host]
            self._wake.set()

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
