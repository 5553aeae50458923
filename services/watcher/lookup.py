"""Looks up host names when they are due, and passes on changes: the I/O of `services.watcher.resolve`."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from queue import SimpleQueue
from typing import Any, Protocol

import structlog

from services.watcher.metrics import WatcherMetrics
from services.watcher.resolve import Names
from shared.model import Endpoint

log = structlog.get_logger(__name__)

SLOW_SHARE = 4
"""One in so many look-ups may be for a name that timed out before."""
SLOW_REMEMBERED = 10_000
"""The most names that are remembered to have timed out."""
GATHER = 0.02
"""Seconds that answers are gathered, so that they are one change and the names are searched once."""
AT_ONCE = 100
"""The most look-ups that begin in one turn of the event loop."""


class Lookup(Protocol):
    async def __call__(self, host: str) -> list[str]:
        """All addresses of a name. Raises OSError (socket.gaierror), UnicodeError or TimeoutError."""


class SystemLookup:
    """The machine's resolver, with a time-out.

    A look-up can't be interrupted, and may take very long. So daemon threads make them, which don't delay the end of
    the process, and the event loop's threads stay free. A name has one look-up at a time. Names that timed out share
    some of the slots, so that they don't block the others.
    """

    def __init__(self, timeout: float, concurrent: int = 64) -> None:
        """`timeout`: seconds from the moment at which a slot is free."""
        self._timeout = timeout
        self._threads = _Threads(concurrent)
        self._slots = asyncio.Semaphore(concurrent)
        self._slow_slots = asyncio.Semaphore(max(1, concurrent // SLOW_SHARE))
        self._slow: dict[str, None] = {}
        self._tasks: dict[str, asyncio.Task[list[Any]]] = {}
        """By name, including those that have timed out."""

    async def __call__(self, host: str) -> list[str]:
        task = self._tasks.get(host)
        if task is None:
            started = asyncio.Event()
            task = self._tasks[host] = asyncio.create_task(self._look_up(host, started), name=f"look-up of {host}")
            task.add_done_callback(lambda task: self._ended(host, task))
            await started.wait()
        self._slow.pop(host, None)
        try:
            async with asyncio.timeout(self._timeout):
                found = await asyncio.shield(task)
        except TimeoutError:
            self._slow[host] = None
            if len(self._slow) > SLOW_REMEMBERED:
                del self._slow[next(iter(self._slow))]
            raise
        return [str(sockaddr[0]) for *_, sockaddr in found]

    async def _look_up(self, host: str, started: asyncio.Event) -> list[Any]:
        async with AsyncExitStack() as stack:
            if host in self._slow:
                await stack.enter_async_context(self._slow_slots)
            await stack.enter_async_context(self._slots)
            started.set()
            return await self._threads.run(lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))

    def _ended(self, host: str, task: asyncio.Task[list[Any]]) -> None:
        del self._tasks[host]
        if not task.cancelled():
            task.exception()  # the caller may have timed out

    def __repr__(self) -> str:
        return f"<SystemLookup timeout={self._timeout:g}, {len(self._tasks)} under way>"


class _Threads:
    """At most `most` daemon threads, for calls that can't be interrupted.

    A thread that takes a call starts another one if none is idle. So the event loop starts the first thread only: many
    calls at once don't hold it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: SimpleQueue[tuple[Future[list[Any]], Callable[[], list[Any]]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._idle = 0
        """Threads that wait for a call, or are about to."""

    async def run(self, call: Callable[[], list[Any]]) -> list[Any]:
        """Raises what the call raises, and OSError if no thread can be started."""
        future: Future[list[Any]] = Future()
        self._calls.put((future, call))
        if not self._started:
            self._start_one()
        if not self._started:
            future.cancel()
            raise OSError("no thread can be started")
        return await asyncio.wrap_future(future)

    def _start_one(self) -> None:
        """Start a thread, unless one is idle or there are as many as allowed."""
        with self._lock:
            if self._idle or self._started == self._most:
                return
            self._started += 1
            self._idle += 1
        try:
            threading.Thread(target=self._work, name="look-up", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._started -= 1
                self._idle -= 1

    def _work(self) -> None:
        while True:
            future, call = self._calls.get()
            with self._lock:
                self._idle -= 1
            self._start_one()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except Exception as error:  # noqa: BLE001 - the top of the thread; the caller gets it
                    future.set_exception(error)
            with self._lock:
                self._idle += 1


class Resolver:
    """Keeps `names` up to date. Calls `on_change` when an address has changed."""

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
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Look-ups under way, by name."""
        self._changed = False
        """Whether an address has changed since the last `on_change`."""

    def follow(self, endpoints: Iterable[Endpoint]) -> None:
        """Look up the names of these endpoints from now on."""
        self.names.follow(endpoints)
        self._wake.set()

    async def look_up_due(self, within: float | None = None) -> bool:
        """Look up the names that are due, and wait at most `within` seconds. Returns whether an address has changed;
        later answers take effect while `run` runs."""
        more = True
        while more:
            more = self._start_due()
            await asyncio.sleep(0)
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=within)
        changed, self._changed = self._changed, False
        return changed

    async def run(self) -> None:
        """Look up names when they are due, for ever. An answer takes effect at once: a name that hangs delays no
        other."""
        try:
            while True:
                self._wake.clear()
                if self._changed:
                    self._changed = False
                    self._on_change()
                self._start_due()
                due = self.names.next_due(self._tasks)
                try:
                    async with asyncio.timeout(None if due is None else max(due - self._clock(), 0.0)):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                await asyncio.sleep(GATHER)
        finally:
            for task in self._tasks.values():
                task.cancel()

    def _start_due(self) -> bool:
        """Begin look-ups that are due. Returns whether more are."""
        due = self.names.due(self._clock(), self._tasks)
        for host in due[:AT_ONCE]:
            self._tasks[host] = asyncio.create_task(self._look_up(host), name=f"name {host}")
        return len(due) > AT_ONCE

    async def _look_up(self, host: str) -> None:
        try:
            self._answered(host, await self._lookup(host))
        except TimeoutError:
            self._failed(host, "no answer in time")
        except Exception as error:  # noqa: BLE001 - the top of the task: a name doesn't affect the others
            self._failed(host, str(error) or type(error).__name__)
        finally:
            del self._tasks[host]
            self._wake.set()

    def _answered(self, host: str, addresses: Sequence[str]) -> None:
        changed = self.names.answered(host, addresses, self._clock())
        self._changed |= changed
        name = self.names.names.get(host)
        if name is not None and name.error:
            self._log_failure(host, name.error)
        elif changed and name is not None:
            log.info("name.resolved", host=host, address=name.address)
            if len(name.addresses) > 1:
                log.warning("name.ambiguous", host=host, used=name.address, all=list(name.addresses))

    def _failed(self, host: str, reason: str) -> None:
        known = self.names.names.get(host)
        self.names.failed(host, reason, self._clock())
        if known is not None and known.error != reason:
            self._log_failure(host, reason)
        self._metrics.lookup_failures.inc()

    def _log_failure(self, host: str, reason: str) -> None:
        kept = self.names.names[host].address
        log.warning("name.not_resolved", host=host, reason=reason, kept=kept or None)

    def __repr__(self) -> str:
        return f"<Resolver {self.names!r} by {self._lookup!r}>"
