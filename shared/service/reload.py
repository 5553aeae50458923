"""The configuration of a tier: replaced as a whole by the next valid one.

Configurations come from the bus, or from a file that is followed. They are read in a thread, one at a time, so that a
later one never loses to an earlier one. What they come to, plugins included, is made in that thread, too: it can take
tenths of a second. Plugins may raise anything; no exception may end the source of the configuration.
"""

import asyncio
import contextlib
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.config.defaults import BUILT_IN, revision
from shared.config.problems import Invalid, Problem
from shared.service.configured import Configured
from shared.service.settings import MAX_TEXT, read_text
from shared.service.watch import file_signature, watch_files
from shared.tasks import set_within

log = structlog.get_logger(__name__)

T = TypeVar("T")

RETRY = 5.0
"""Seconds until a configuration on which a plugin failed is tried again."""
RESCAN = 2.0
"""Seconds between two checks of a file without a notification: network file systems send none."""


class Reloader(Generic[T]):
    """Reads each configuration that it is offered, and puts it in use.

    `read(text, origin)` runs in a thread without side effects, and makes all that can take long; an empty text is the
    built-in default. `use` puts the result in use, in the event loop.
    """

    def __init__(
        self,
        read: Callable[[str, str], T],
        use: Callable[[T], None],
        running: str | None = None,
        origin: str = "",
        *,
        limit: int = MAX_TEXT,
    ) -> None:
        """`running` is the text in use, from `origin`; None for the built-in default until the first offer. A followed
        file has at most `limit` bytes."""
        self._read = read
        self._use = use
        self._limit = limit
        self._last: str | Invalid | None = running
        """The text that was offered last, or why there was none."""
        self._first = True
        """Whether none was offered yet."""
        self._pending = False
        """Whether the first one that was offered is still being read."""
        self._wanted: tuple[str | Invalid, str] | None = None
        """The last one while it waits to be read, with its origin. One that it overtakes isn't read."""
        self._wake = asyncio.Event()
        self._failed: tuple[str, str] | None = None
        """The last one where it may be no fault of its own that it can't be used, with its origin."""
        self.accepted = 0
        self.refused = 0
        self.problem = ""
        """Why the last one was refused; empty when it was taken."""
        self.origin = origin or BUILT_IN
        """Of the one that is in use."""
        self.revision = revision(running or "")
        """Of the one that is in use."""

    def offer(self, text: str, origin: str) -> None:
        """Offer a configuration from the bus. `run` reads it; nothing should be served while the first is `pending`."""
        first, self._first = self._first, False
        if text != self._last:
            self._pending |= first
            self._request(text, origin)

    def pending(self) -> str | None:
        """Why the process isn't ready: the first configuration from the bus is still being read. None if it isn't."""
        return "the first configuration is being read" if self._pending else None

    def in_use(self, pool: str) -> Configured:
        """The configuration that the pool's tier runs."""
        return Configured(pool, self.origin, self.revision)

    async def run(self) -> None:
        """Read offered configurations forever. Retry one on which a plugin failed: what the plugin needs may appear."""
        while True:
            await set_within(self._wake, None if self._failed is None else RETRY)
            self._wake.clear()
            wanted, self._wanted = self._wanted or self._failed, None
            assert wanted is not None
            text, origin = wanted
            if isinstance(text, Invalid):
                self._failed = None
                self._refuse(text, origin)
                continue
            with self._outcome(text, origin):
                self._use(await asyncio.to_thread(self._reading, text, origin))
            self._pending = False

    def _reading(self, text: str, origin: str) -> T:
        """In a thread: a future can't pass on every exception."""
        try:
            return self._read(text, origin)
        except StopIteration as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def _request(self, offered: str | Invalid, origin: str) -> None:
        self._last = offered
        self._wanted = offered, origin
        self._wake.set()

    @contextlib.contextmanager
    def _outcome(self, text: str, origin: str) -> Iterator[None]:
        """Read this configuration and put it in use. Failures are logged and kept."""
        self._failed = None
        try:
            yield
        except Invalid as error:
            self._refuse(error, origin)
        except Exception as error:
            self._failed = text, origin
            problem = f"{origin or BUILT_IN}: {type(error).__name__}: {error}"
            if problem != self.problem:
                self.problem = problem
                self.refused += 1
                log.exception("config.failed", origin=origin, again_in=RETRY)
        else:
            self.problem = ""
            self.accepted += 1
            self.origin, self.revision = origin or BUILT_IN, revision(text)
            self.log_in_use()

    def log_in_use(self) -> None:
        """Log which configuration is in use from now on."""
        log.info("config.loaded", origin=self.origin, revision=self.revision)

    async def follow(self, path: str, flag: str, interval: float = RESCAN) -> None:
        """Offer what the file that a flag names says, whenever it changes, for ever. `interval` is seconds."""
        seen: tuple[int, ...] | None = None
        unread = ""
        async for _ in watch_files(lambda: [Path(path)], interval):
            signature = await asyncio.to_thread(_signature, path)
            if signature is None or signature == seen:
                continue
            try:
                text = await asyncio.to_thread(read_text, path, flag, self._limit)
                if text != self._last and not text.strip():
                    raise Invalid(
                        [Problem(flag, f"{path!r} is empty; a file can look like that while it is being written")]
                    )
            except Invalid as error:
                if isinstance(error.__cause__, OSError):  # the next look reads it again, changed or not
                    if str(error) != unread:
                        self._request(error, path)
                    unread = str(error)
                    continue
                self._request(error, path)
            else:
                if text != self._last:
                    self._request(text, path)
            seen, unread = signature, ""

    def _refuse(self, error: Invalid, origin: str) -> None:
        self.refused += 1
        self.problem = str(error)
        log.error("config.refused", origin=origin, problems=error.lines())

    def __repr__(self) -> str:
        return f"<Reloader {self.accepted} accepted, {self.refused} refused{self.problem and ': '}{self.problem}>"


class ReloadMetrics(Collector):
    """The results of the configurations that a reloader was offered, as the counter `name`."""

    def __init__(self, name: str, reloader: Reloader[Any]) -> None:
        self._name = name
        self._reloader = reloader

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, "Configurations after the first, by result", labels=["result"])
        family.add_metric(["taken"], self._reloader.accepted)
        family.add_metric(["refused"], self._reloader.refused)
        yield family


def _signature(path: str) -> tuple[int, ...] | None:
    """The signature of a file, which a change or replacement alters; empty if it isn't there, None if it is no file."""
    try:
        status = Path(path).stat()
    except OSError:
        return ()
    if not stat.S_ISREG(status.st_mode):
        return None
    return file_signature(status)
