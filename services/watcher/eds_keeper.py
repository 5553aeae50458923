"""Keeps Envoy's file equal to the endpoints: on change, again after a failure, and when somebody removed it."""

import asyncio
from collections.abc import Iterable

import structlog

from services.watcher.eds import EdsFile, render
from services.watcher.metrics import WatcherMetrics
from shared.config.problems import Invalid, Problem
from shared.model import Endpoint

log = structlog.get_logger(__name__)

RETRY = 1.0
"""Seconds until a file that could not be written is tried again."""


class EdsKeeper:
    """Writes `path` for the Envoy cluster `cluster`; looks every `interval` seconds whether it is still there."""

    def __init__(self, path: str, cluster: str, interval: float, metrics: WatcherMetrics) -> None:
        self._path = path
        self._cluster = cluster
        self._interval = interval
        self._metrics = metrics
        self._file = EdsFile(path)
        self._endpoints: tuple[Endpoint, ...] = ()
        self._wake = asyncio.Event()
        self._created = False
        """Whether there was no file before `create`."""
        self.error = ""
        """Why the file isn't as it should be; empty when it is."""

    def update(self, endpoints: Iterable[Endpoint]) -> None:
        """What shall be in the file; written soon, while `run` runs."""
        self._endpoints = tuple(endpoints)
        self._wake.set()

    async def create(self) -> None:
        """Where there is no file, write one without endpoints: Envoy doesn't start without a file, and it may take long
        to find out what the endpoints are. A file that is there stays as it is.

        Raises `Invalid` when it can't be written.
        """
        try:
            await asyncio.to_thread(self._file.check)
            if not self._file.exists():
                await self._write()
                self._created = True
        except OSError as error:
            raise self._unwritable(error) from error

    async def start(self, *, replace: bool) -> None:
        """Write what shall be in the file; with `replace` false only in place of what `create` has written.

        Raises `Invalid` when it can't be written.
        """
        try:
            if replace or self._created:
                await self._write()
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> Invalid:
        return Invalid([Problem("--eds-file", f"{self._path!r} can't be written: {error.strerror or error}")])

    async def run(self) -> None:
        """Write when there is something new, and when the file is gone."""
        while True:
            try:
                async with asyncio.timeout(min(RETRY, self._interval) if self.error else self._interval):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self._write()
            except OSError as error:
                self._metrics.eds_failures.inc()
                if self.error != str(error):
                    log.error("eds.not_written", file=self._path, reason=str(error))
                self.error = str(error)

    async def _write(self) -> None:
        endpoints = self._endpoints
        if await asyncio.to_thread(self._file.write, render(endpoints, self._cluster)):
            self._metrics.eds_writes.inc()
            log.info("eds.written", file=self._path, endpoints=len(endpoints))
        self.error = ""

    def state(self) -> dict[str, object]:
        """For `/debug/state`."""
        return {"file": self._path, "cluster": self._cluster, "writes": self._file.writes, "error": self.error or None}

    def __repr__(self) -> str:
        return f"<EdsKeeper {self._path} {self.error or 'as it should be'}>"
