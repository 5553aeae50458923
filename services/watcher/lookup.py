"""Looks up host names when they are due, and passes on changes: the I/O of `services.watcher.resolve`."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import structlog

from services.watcher.few import few
from services.watcher.metrics import WatcherMetrics
from services.watcher.resolve import MAX_ADDRESSES, Group, Names, order
from shared.daemon_threads import DaemonThreads
from shared.model import Endpoint
from shared.system_resolver import addresses_of
from shared.tasks import in_turns, set_within

log = structlog.get_logger(__name__)

GATHER = 0.02
"""Seconds that answers are gathered, so that they are one change and the names are searched once."""
MAX_CHANGES = 500
"""Endpoints that change together."""
TOO_LATE = "no answer in time"


class Lookup(Protocol):
    async def __call__(self, host: str) -> list[str]:
        """The addresses of a name, at least the preferred ones. Raises OSError (socket.gaierror), UnicodeError or
        TimeoutError."""


class Lookups:
    """The look-ups under way, of all pools. A name has one at a time.

    A look-up can't be interrupted, and may take very long. So it occupies its slot even after its time-out. Names that
    hang leave slots to others: a group of names occupies at most as many slots as are free, new and slow names of one
    origin half of them, and of the last quarter each origin one.
    """

    def __init__(self, lookup: Lookup, timeout: float, concurrent: int) -> None:
        self.timeout = timeout
        self._lookup = lookup
        self._concurrent = concurrent
        self._under_way: dict[str, asyncio.Task[list[str]]] = {}
        self._groups: dict[str, Group] = {}
        """The group that occupies the slot of a name."""
        self._occupied: Counter[Group] = Counter()
        self._last: dict[str, str] = {}
        """By origin: the name that occupies its slot of the last quarter."""
        self._waiting: dict[Callable[[], None], None] = {}

    def may_begin(self, group: Group) -> bool:
        """Whether there is a slot for a name of this group."""
        untested = sum(self._occupied[Group(group.origin, kind)] for kind in ("new", "slow"))
        if group.kind != "known" and untested >= max(1, self._concurrent // 2):
            return False
        if self._few_free and group.origin in self._last:
            return False
        return self._occupied[group] < self._free_slots

    @property
    def _free_slots(self) -> int:
        return self._concurrent - len(self._under_way)

    @property
    def _few_free(self) -> bool:
        return self._free_slots <= self._concurrent // 4

    def begin(self, host: str, group: Group) -> asyncio.Task[list[str]]:
        """The look-up of a name, which may be under way already."""
        task = self._under_way.get(host)
        if task is None:
            if self._few_free:
                self._last[group.origin] = host
            task = self._under_way[host] = asyncio.create_task(self._run(host), name=f"look-up of {host}")
            self._groups[host] = group
            self._occupied[group] += 1
            task.add_done_callback(partial(self._ended, host))
        return task

    def hangs(self, host: str) -> None:
        """From now on, a name counts as slow, so that its slot isn't one of the new names."""
        group = self._groups[host]
        self._free(group)
        self._groups[host] = group._replace(kind="slow")
        self._occupied[self._groups[host]] += 1
        self._call_waiting()

    def when_free(self, call: Callable[[], None]) -> None:
        """Call this once when a slot is free again."""
        self._waiting[call] = None

    async def _run(self, host: str) -> list[str]:
        return await self._lookup(host)

    def _free(self, group: Group) -> None:
        self._occupied[group] -= 1
        if not self._occupied[group]:
            del self._occupied[group]

    def _ended(self, host: str, task: asyncio.Task[list[str]]) -> None:
        del self._under_way[host]
        group = self._groups.pop(host)
        self._free(group)
        if self._last.get(group.origin) == host:
            del self._last[group.origin]
        if task.cancelled():
            return  # the process ends
        task.exception()  # the name may have been forgotten
        self._call_waiting()

    def _call_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            call()

    def __repr__(self) -> str:
        return f"<Lookups {len(self._under_way)} of {self._concurrent} under way>"


class SystemLookup:
    """The machine's resolver. Daemon threads call it, which don't delay the end of the process, and the event loop's
    threads stay free."""

    def __init__(self, concurrent: int = 64) -> None:
        self._threads = DaemonThreads(concurrent, "look-up")

    async def __call__(self, host: str) -> list[str]:
        return await self._threads.run(partial(_addresses, host))

    def __repr__(self) -> str:
        return "<SystemLookup>"


def _addresses(host: str) -> list[str]:
    """The preferred ones. An answer may have 6 000, which take too long for the event loop."""
    return list(order(addresses_of(host))[:MAX_ADDRESSES])


class Resolver:
    """Keeps `names` up to date. Calls `on_change` with the ids of endpoints whose address has changed."""

    def __init__(
        self,
        names: Names,
        lookups: Lookups,
        on_change: Callable[[Sequence[str]], None],
        metrics: WatcherMetrics,
        clock: Callable[[], float] = time.monotonic,
        published: Callable[[str], Endpoint | None] = lambda id: None,
    ) -> None:
        """`published` gives what another watcher has published of an endpoint, by id."""
        self.names = names
        self._lookups = lookups
        self._on_change = on_change
        self._metrics = metrics
        self._clock = clock
        self._published = published
        self._wake = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By the name whose answer they wait for."""
        self._changes: dict[str, tuple[str, str]] = {}
        """What `follow` has been told and hasn't taken effect."""
        self._following = False
        """Whether it is about to."""
        self._changed: set[str] = set()
        """Names whose address has changed since the last `on_change`."""

    def follow(self, hosts: Mapping[str, tuple[str, str]]) -> None:
        """These endpoints, by id, have these names, as these origins state them; an empty name is none. Many take
        effect while `look_up_due` or `run` runs."""
        self._changes |= hosts
        if len(self._changes) <= MAX_CHANGES and not self._following:
            for _ in self._follow_changes():
                pass
        self._wake.set()

    def adopt(self, endpoints: Iterable[Endpoint]) -> None:
        """Use addresses that another watcher has published, for names that have never resolved here. They take effect
        like answers."""
        self._adopted(self.names.adopt(endpoints))

    def _adopted(self, hosts: list[str]) -> None:
        if hosts:
            log.info("name.adopted", hosts=few(hosts))
            self._changed.update(hosts)
            self._wake.set()

    async def _follow_in_turns(self) -> None:
        self._following = True
        try:
            async for _ in in_turns(self._follow_changes()):
                pass
        finally:
            self._following = False

    def _follow_changes(self) -> Iterator[None]:
        """One name at a time. A name that only other endpoints have in the end is kept."""
        while self._changes:
            adopted: list[str] = []
            changes, self._changes = self._changes, {}
            for id, (host, origin) in reversed(changes.items()):  # of new names, the last comes first
                self.names.set(id, host, origin)
                if host and (endpoint := self._published(id)) is not None:
                    adopted += self.names.adopt((endpoint,))
                yield
            self._adopted(adopted)
        for host in self.names.forget():
            task = self._tasks.pop(host, None)
            if task is not None:
                task.cancel()
            yield

    async def look_up_due(self, within: float | None = None) -> bool:
        """Look up the names that are due, and wait at most `within` seconds. Returns whether an address has changed;
        later answers take effect while `run` runs."""
        await self._follow_in_turns()
        self._begin()
        try:
            async with asyncio.timeout(within):
                while self._tasks:
                    await asyncio.wait(self._tasks.values())
        except TimeoutError:
            pass
        changed, self._changed = self._changed, set()
        return bool(changed)

    async def run(self) -> None:
        """Look up names when they are due, for ever. An answer takes effect at once: a name that hangs delays no
        other."""
        try:
            while True:
                self._wake.clear()
                await self._follow_in_turns()
                ids, self._changed = self.names.endpoints_of(self._changed), set()
                for start in range(0, len(ids), MAX_CHANGES):
                    self._on_change(ids[start : start + MAX_CHANGES])
                    await asyncio.sleep(0)
                self._begin()
                due = self.names.next_due()
                await set_within(self._wake, None if due is None else due - self._clock())
                await asyncio.sleep(GATHER)
        finally:
            for task in self._tasks.values():
                task.cancel()

    def _begin(self) -> None:
        """Begin the look-ups that are due and have a slot."""
        while (taken := self.names.take(self._clock(), self._lookups.may_begin)) is not None:
            host, group = taken
            answer = self._lookups.begin(host, group)
            self._tasks[host] = asyncio.create_task(self._take(host, answer), name=f"name {host}")
        if self.names.waiting:
            self._lookups.when_free(self._begin)

    async def _take(self, host: str, answer: asyncio.Task[list[str]]) -> None:
        """Wait for an answer. One that comes too late counts, too."""
        try:
            await asyncio.wait([answer], timeout=self._lookups.timeout)
            hangs = not answer.done()
            if hangs:
                self._report_failure(host, TOO_LATE)
                self.names.hangs(host, TOO_LATE)
                self._lookups.hangs(host)
                await asyncio.wait([answer])
            try:
                self._answered(host, answer.result())
            except Exception as error:  # noqa: BLE001 - the top of the task: a name doesn't affect the others
                reason = TOO_LATE if isinstance(error, TimeoutError) else str(error) or type(error).__name__
                if not hangs:
                    self._report_failure(host, reason)
                self.names.failed(host, reason, self._clock())
        finally:
            if self._tasks.get(host) is asyncio.current_task():
                del self._tasks[host]
            self._wake.set()

    def _answered(self, host: str, addresses: Sequence[str]) -> None:
        changed = self.names.answered(host, addresses, self._clock())
        if changed:
            self._changed.add(host)
        name = self.names.names.get(host)
        if name is not None and name.error:
            self._log_failure(host, name.error)
        elif changed and name is not None:
            log.info("name.resolved", host=host, address=name.address)
            if len(name.addresses) > 1:
                log.warning("name.ambiguous", host=host, used=name.address, all=list(name.addresses))

    def _report_failure(self, host: str, reason: str) -> None:
        self._metrics.lookup_failures.inc()
        if self.names.names[host].error != reason:
            self._log_failure(host, reason)

    def _log_failure(self, host: str, reason: str) -> None:
        kept = self.names.names[host].address
        log.warning("name.not_resolved", host=host, reason=reason, kept=kept or None)

    def __repr__(self) -> str:
        return f"<Resolver {self.names!r} by {self._lookups!r}>"
