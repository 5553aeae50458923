"""A process of any tier: starts, serves, drains on SIGTERM, stops, and exits with a code that tells how it went.

A tier subclasses `Service` and fills in `start`, `drain`, `close` and `state`; `run` does the rest. The order on
SIGTERM or SIGINT: not ready at once, `drain` (bounded by `--drain-timeout`), `close`, admin HTTP last, so that probes
and scrapes see the end. A second signal ends the process at once.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import structlog
import uvloop
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, GCCollector, Info, PlatformCollector, ProcessCollector

from shared.config.problems import Invalid
from shared.service import logs
from shared.service.admin import AdminServer, build_app
from shared.service.readiness import Readiness
from shared.service.settings import CommonSettings, parse
from shared.version import VERSION

log = structlog.get_logger(__name__)

EXIT_INVALID = 1
"""Settings or documents are wrong; nothing was started."""
EXIT_CRASHED = 70
"""A task that the process can't do without has failed (EX_SOFTWARE)."""


class Service:
    """One process of a tier. Subclasses override `start`, `drain`, `close`, `state` and, for own routes, `routes`."""

    tier = "service"

    def __init__(self, settings: CommonSettings) -> None:
        self.common = settings
        self.id = settings.id or default_id()
        self.readiness = Readiness()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        Info("pointsman_build", "The program that runs", registry=self.registry).info(
            {"version": VERSION, "tier": self.tier}
        )
        self._crashes = Counter(
            "pointsman_task_crashes", "Background tasks that ended with an exception", ["task"], registry=self.registry
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._exit_code = 0
        self.admin_port = 0

    async def start(self) -> None:
        """Begin to work. Raises `Invalid` when what was given can't be run."""

    async def drain(self) -> None:
        """Finish what is under way and take nothing new; cut off after `--drain-timeout`."""

    async def close(self) -> None:
        """Let go of connections and files."""

    def state(self) -> Mapping[str, Any]:
        """What `/debug/state` shows."""
        return {}

    def routes(self, app: FastAPI) -> None:
        """Add the tier's own admin routes."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str, *, essential: bool = True) -> asyncio.Task[None]:
        """Run a background task until `close`. If it fails, the failure is logged and counted; an essential one's
        failure also stops the process, because a tier that only seems to work is worse than one that restarts."""
        task = asyncio.create_task(self._guard(work, name, essential), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guard(self, work: Coroutine[Any, Any, None], name: str, essential: bool) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception:  # the top of a task: logged, counted, and the process told
            log.exception("task.crashed", task=name, essential=essential)
            self._crashes.labels(name).inc()
            if essential:
                self._exit_code = EXIT_CRASHED
                self._stop.set()

    def stop(self) -> None:
        """Ask the process to end, as SIGTERM does."""
        self._stop.set()

    async def serve(self) -> int:
        """Run until `stop`; the exit code."""
        app = build_app(
            f"pointsman {self.tier}",
            self.readiness,
            self.registry,
            lambda: {"id": self.id, "tier": self.tier, "version": VERSION, **self.state()},
        )
        self.routes(app)
        admin = AdminServer(app, self.common.admin_host, self.common.admin_port)
        self.admin_port = admin.port
        await admin.start()
        log.info("service.starting", version=VERSION, admin_port=admin.port)
        try:
            await self.start()
            log.info("service.started")
            await self._stop.wait()
            await self._drain()
        finally:
            await self._finish()
            await admin.stop()
            log.info("service.stopped", exit_code=self._exit_code)
        return self._exit_code

    async def _drain(self) -> None:
        self.readiness.draining = True
        log.info("service.draining", timeout=self.common.drain_timeout)
        try:
            async with asyncio.timeout(self.common.drain_timeout):
                await self.drain()
        except TimeoutError:
            log.warning("service.drain_timeout", timeout=self.common.drain_timeout)

    async def _finish(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.close()


S = TypeVar("S", bound=CommonSettings)


def run(kind: type[S], build: Callable[[S], Service], argv: Sequence[str], tier: str) -> int:
    """A tier's main: settings, logs, signals, event loop. Returns the process's exit code."""
    try:
        settings = parse(kind, argv, os.environ, f"pointsman {tier}")
    except Invalid as error:
        return report(error)
    logs.configure(settings.log_level, settings.log_format, tier=tier)

    async def main() -> int:
        service = build(settings)
        structlog.contextvars.bind_contextvars(id=service.id)
        with _signals(service):
            return await service.serve()

    try:
        return uvloop.run(main())
    except Invalid as error:
        return report(error)


def report(error: Invalid) -> int:
    """Print every problem, a line each, and give the exit code for it."""
    for line in error.lines():
        print(line, file=sys.stderr)
    return EXIT_INVALID


def default_id() -> str:
    """Host name and a random part: unique among peers, and tells a human where it runs."""
    return f"{socket.gethostname().split('.')[0]}-{secrets.token_hex(3)}"


@contextlib.contextmanager
def _signals(service: Service) -> Any:
    loop = asyncio.get_running_loop()
    seen = 0

    def on_signal(number: int) -> None:
        nonlocal seen
        seen += 1
        log.info("service.signal", signal=signal.Signals(number).name)
        if seen > 1:
            os._exit(128 + number)
        service.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
