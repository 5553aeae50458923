"""A process of any tier: starts, serves, drains on SIGTERM, stops, and exits with a meaningful code.

A tier subclasses `Service` with `start`, `drain`, `close` and `state`; `run` does the rest. On SIGTERM or SIGINT:
unready at once, `drain` (within `--drain-timeout`), the tasks, `close` (within `--close-timeout`), admin HTTP last, so
that probes and scrapes see the end. A step that fails or takes too long is logged, and the next one follows. A second
signal ends the process at once. Neither a task that goes on after it is cancelled nor a thread that hangs, such as in a
network file system, keeps the process.
"""

import asyncio
import contextlib
import os
import resource
import secrets
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import structlog
import uvloop
from fastapi import APIRouter
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter, GCCollector, Info, PlatformCollector, ProcessCollector

from shared.bus.subjects import id_fault
from shared.config.problems import Invalid, Problem
from shared.daemon_threads import DaemonThreads
from shared.plugin_failures import PluginFailures
from shared.service import logs
from shared.service.admin import AdminServer, Pages, ProcessPages, build_app
from shared.service.configured import Configured, ConfiguredMetrics
from shared.service.readiness import Phase, Readiness
from shared.service.settings import EXIT_INVALID, CommonSettings, parse, report, warn_of_variables
from shared.service.watchdog import Watchdog
from shared.tasks import cancel
from shared.version import VERSION

log = structlog.get_logger(__name__)

EXIT_CRASHED = 70
"""The exit code if an essential task has failed (EX_SOFTWARE of sysexits.h)."""
MAX_OWN_ID = 1024
"""Bytes of a process's escaped id; those of its workers and of its terms as a leader are a little longer."""
UNWIND = 1.0
"""Seconds in which what is cancelled has to end; then the shutdown goes on without it."""
THREADS = 32
"""Calls of `asyncio.to_thread` at once, such as reading files: as many as asyncio's own threads are at most."""


class Service:
    """One process of a tier. Subclasses override `start`, `drain`, `close`, `state` and, for own routes, `routes`."""

    tier = "service"
    max_connections = 0
    """Connections that the tier takes, besides those of admin HTTP."""
    listens = True
    """Whether admin HTTP has a port. Without one, `admin` serves the connections that it adopts."""

    def __init__(self, settings: CommonSettings) -> None:
        self.common = settings
        self.id = settings.id or default_id()
        self.readiness = Readiness(Phase.STARTING)
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        Info("pointsman_build", "Version and tier of the process", registry=self.registry).info(
            {"version": VERSION, "tier": self.tier}
        )
        self.registry.register(ConfiguredMetrics(self.configurations))
        self._crashes = Counter(
            "pointsman_task_crashes", "Background tasks that failed with an exception", ["task"], registry=self.registry
        )
        self.plugin_failures = PluginFailures(time.monotonic)
        self.registry.register(self.plugin_failures)
        self.readiness.mention("plugins", self.plugin_failures.note)
        self._watchdog = Watchdog(self.registry)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._exit_code = 0
        self._made_at = time.monotonic()
        self.admin: AdminServer | None = None
        self.admin_port = 0
        """Where admin HTTP listens, once `serve` has begun."""

    async def start(self) -> None:
        """Begin to work. Cancelled when the process stops meanwhile. Raises `Invalid` for an unusable configuration."""

    async def drain(self) -> None:
        """Finish open work and accept no new work; cancelled after `--drain-timeout`."""

    async def close(self) -> None:
        """Release connections and files, also after a failed or cancelled `start`; limited by `--close-timeout`."""

    def uptime(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._made_at

    def longest_pause(self) -> float:
        """Seconds of the longest pause of the event loop."""
        return self._watchdog.longest

    def state(self) -> Mapping[str, Any]:
        """What `/debug/state` shows."""
        return {}

    def configurations(self) -> Sequence[Configured]:
        """The configurations that are in use."""
        return ()

    def routes(self) -> APIRouter:
        """The tier's own admin routes."""
        return APIRouter()

    def pages(self) -> Pages:
        """What the admin routes of every tier respond."""
        return ProcessPages(self.readiness, self.registry, self._state, self.configurations)

    def spawn(self, work: Coroutine[Any, Any, None], name: str, *, essential: bool = True) -> asyncio.Task[None]:
        """Run a background task until `close`. A failure is logged and counted. That of an essential task stops the
        process: it restarts, instead of only seeming to work."""
        task = asyncio.create_task(self._guard(work, name, essential), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # of one that is cancelled before it begins, nobody else would
        return task

    async def _guard(self, work: Coroutine[Any, Any, None], name: str, essential: bool) -> None:
        self._crashes.labels(name)  # a series that is there at 0 can be alerted on
        try:
            await work
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
        """Run until `stop`, and return the exit code. Raises `Invalid` if the service can't run with its settings."""
        common = self.common
        app = build_app(self.pages(), self.routes(), title=f"pointsman {self.tier} {self.id}")
        admin = self.admin = AdminServer(
            app,
            common.admin_host,
            common.admin_port if self.listens else None,
            timeout=common.admin_timeout,
            connections=common.admin_connections,
            hostnames=common.admin_hostnames,
        )
        self.admin_port = admin.port
        answering = asyncio.create_task(self._guard(admin.serve(), "admin", essential=True), name="admin")
        log.info("service.starting", version=VERSION, admin_port=admin.port)
        files, connections = raise_file_limit(), self.max_connections + common.admin_connections
        if files < connections:
            log.warning("files.limit.low", files=files, connections=connections)
        self.spawn(self._watchdog.run(), "watchdog", essential=False)
        try:
            if await self._begin():
                self.readiness.phase = Phase.SERVING
                log.info("service.started")
                await self._stop.wait()
                self.readiness.phase = Phase.STOPPING
                log.info("service.draining", timeout=self.common.drain_timeout)
                await self._step("drain", self.drain(), self.common.drain_timeout)
        except Invalid:
            self._exit_code = EXIT_INVALID
            raise
        except Exception:
            self._exit_code = EXIT_CRASHED
            raise
        finally:
            self.readiness.phase = Phase.STOPPING
            await self._step("cancel", cancel(*self._tasks), self.common.close_timeout)
            await self._step("close", self.close(), self.common.close_timeout)
            admin.stop()
            await answering
            log.info("service.stopped", exit_code=self._exit_code)
        return self._exit_code

    def _state(self) -> Mapping[str, Any]:
        about = {"id": self.id, "tier": self.tier, "version": VERSION}
        return {**about, "configurations": self.configurations(), **self.state()}

    async def _begin(self) -> bool:
        """Start. Returns False if the process was asked to stop in the meantime; the start is then not awaited."""
        starting = asyncio.create_task(self.start(), name="start")
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                return True
            return False
        finally:
            stopping.cancel()
            if not starting.done():
                await self._step("start", _cancelled(starting), self.common.close_timeout)

    async def _step(self, name: str, work: Coroutine[Any, Any, None], timeout: float) -> None:
        """One step of the shutdown. The next one follows even if it fails, or goes on after it was cancelled."""
        step = asyncio.create_task(work, name=name)
        try:
            ended, _ = await asyncio.wait((step,), timeout=timeout)
        finally:
            step.cancel()
        if not ended:
            log.warning("service.timeout", step=name, timeout=timeout)
            ended, _ = await asyncio.wait((step,), timeout=UNWIND)
        if ended and not step.cancelled() and (error := step.exception()) is not None:
            log.error("service.failed", step=name, exc_info=error)  # the process ends anyway, but not well
            self._exit_code = self._exit_code or EXIT_CRASHED

    def __repr__(self) -> str:
        what = self.readiness.phase.name.lower()
        return f"<{type(self).__name__} {self.id!r}: {what}, {len(self._tasks)} tasks>"


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task, and wait for its end. Raises what it raises."""
    await cancel(task)
    if not task.cancelled():
        task.result()


S = TypeVar("S", bound=CommonSettings)


def run(kind: type[S], build: Callable[[S], Service], argv: Sequence[str], tier: str) -> int:
    """A tier's main: settings, logs, signals, event loop. Returns the process's exit code."""
    try:
        settings = parse(kind, argv, os.environ, f"pointsman {tier}")
        if fault := id_fault(settings.id, MAX_OWN_ID):
            raise Invalid([Problem("--id", fault)])
    except Invalid as error:
        return report(error)
    settings = replace(settings, id=settings.id or default_id())
    logs.configure(settings.log_level, settings.log_format, tier=tier, id=settings.id)
    warn_of_variables(kind, os.environ)
    try:
        return operate(lambda: build(settings))
    except Invalid as error:
        return report(error)


def operate(build: Callable[[], Service]) -> int:
    """Build a service and run it until its end: signals, event loop. Returns the process's exit code. Raises `Invalid`
    as `Service.serve` does."""

    async def main() -> int:
        service = build()
        threads = DaemonThreads(THREADS, "worker", patience=service.common.close_timeout)
        asyncio.get_running_loop().set_default_executor(threads)
        with _signals(service):
            return await service.serve()

    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(main())
    except Invalid:
        raise
    except Exception:  # the top of the process
        log.exception("service.crashed")
        return EXIT_CRASHED
    finally:
        loop.run_until_complete(_end())
        loop.close()


async def _end() -> None:
    """End what still runs in this event loop. asyncio's `Runner` would wait for it without a limit."""
    loop = asyncio.get_running_loop()
    if left := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=UNWIND)
    if left:
        log.warning("tasks.left", tasks=sorted(task.get_name() for task in left))
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


def raise_file_limit() -> int:
    """Let the process open as many files as the system allows, and return that number. The usual limit of 1 024 is for
    programs that use select(2)."""
    files, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != allowed:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
            files = allowed
    return files


def default_id() -> str:
    """Host name and a random part: unique among peers, and shows a human where it runs."""
    return f"{socket.gethostname().split('.')[0]}-{secrets.token_hex(3)}"


@contextlib.contextmanager
def _signals(service: Service) -> Iterator[None]:
    """The first SIGTERM or SIGINT stops the service, the second ends the process."""
    loop = asyncio.get_running_loop()
    seen = 0

    def on_signal(number: int) -> None:
        nonlocal seen
        seen += 1
        log.info("service.signal", signal=signal.Signals(number).name, seen=seen)
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
