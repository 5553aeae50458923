"""`pointsman picker --workers N`: starts N workers, distributes connections over them, and owns all ports.

Each worker is a picker of its own on the bus. The supervisor accepts the connections to the ext_proc port, and hands
each to the worker that has the fewest. If the workers shared the listening socket, several of a proxy's few, long-lived
connections could end up with one worker, and none with another.
"""

import asyncio
import errno
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from fastapi import APIRouter
from msgspec.structs import replace
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.picker.admin.decisions import decision_routes
from services.picker.body_buffer import MemoryBudget
from services.picker.settings.picker import PickerSettings
from services.picker.transport.calls import MAX_QUESTION
from services.picker.transport.grpc_server import GrpcServer, for_health
from services.picker.transport.health import Health
from services.picker.workers.pages import WorkerPages
from services.picker.workers.worker import Worker
from shared.config.problems import Invalid, Problem
from shared.model import join_host_port
from shared.service.process import Service
from shared.service.view import add_view

log = structlog.get_logger(__name__)

BACKLOG = 1024
"""Connections that wait to be accepted."""
LOOK = 1.0
"""Seconds between two looks at how connections are distributed."""
UNEVEN = 3
"""Looks in a row that find them uneven before proxies have to open new ones."""
EXHAUSTED = 0.5
"""Seconds without accepting when there is no descriptor or memory left."""


class Supervisor(Service):
    """Several pickers behind one port."""

    tier = "picker"

    def __init__(self, settings: PickerSettings) -> None:
        super().__init__(settings)
        # grpcio, if it is the transport, would log a line for each process that is started
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        self._settings = settings
        self.workers: list[Worker] = []
        self._pages = WorkerPages(self, self.workers)
        self._running: list[asyncio.Task[None]] = []
        """One for each worker. They outlive the tasks of the service, which end before `close`."""
        self._complete = False
        """Whether all workers have been ready once."""
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self.port = 0
        self.health = Health(self._serving)
        options = for_health(settings.http2_options(MAX_QUESTION))
        self.max_connections = options.max_connections
        self.health_server = GrpcServer(
            self.health.methods,
            host=settings.grpc_host,
            port=settings.grpc_health_port,
            flag="--grpc-health-port",
            options=options,
            memory=MemoryBudget(settings.max_held_bodies, time.monotonic),
        )
        self.registry.register(WorkerMetrics(self.workers, self._pages))

    async def start(self) -> None:
        settings = self._settings
        hands_over = settings.transport == "http2"
        self._listener = _bind(settings.grpc_host, settings.grpc_port, shared=not hands_over)
        self.port = self._listener.getsockname()[1]
        await self.health_server.start()
        own = partial(replace, settings, workers=1, grpc_port=self.port)
        for number in range(settings.workers):
            worker = Worker(number, own(id=f"{self.id}-{number}"), time.monotonic, self._pages.ended)
            self.workers.append(worker)
            running = asyncio.create_task(worker.run())
            self._running.append(running)
            self.spawn(_outcome(running), f"worker {number}")
        for worker in self.workers:
            await worker.started()
        if hands_over:
            self._accepting = self.spawn(self._accept(self._listener), "accept")
            self.spawn(self._balance(), "balance")
        self.spawn(self.health.run(), "health")
        log.info("ext_proc.listening", host=settings.grpc_host, port=self.port, workers=len(self.workers))

    async def drain(self) -> None:
        """NOT_SERVING at once. The workers drain; connections are accepted until they end theirs."""
        self.health.drain()
        for worker in self.workers:
            worker.stop()
        await asyncio.sleep(self._settings.drain_delay)
        await self._stop_listening()
        await asyncio.wait(self._running, timeout=self._settings.drain_timeout - self._settings.drain_delay)

    async def close(self) -> None:
        await self._stop_listening()
        for worker in self.workers:
            worker.stop()
        try:
            await asyncio.gather(*self._running, return_exceptions=True)
        finally:
            for worker in self.workers:
                worker.kill()
        await self.health_server.stop(0.0)

    def state(self) -> Mapping[str, Any]:
        return {"grpc_port": self.port, "grpc_health_port": self.health_server.port}

    def pages(self) -> WorkerPages:
        return self._pages

    def routes(self) -> APIRouter:
        router = decision_routes(self._pages.newest, self._pages.of_request)
        add_view(router, self._pages.view)
        return router

    def _serving(self) -> bool:
        """For gRPC health: from when all workers are ready, as long as one is. Were one enough at the start, it would
        get all connections; later, the others' connections are more useful than none."""
        ready = [worker.ready for worker in self.workers]
        self._complete = self._complete or (bool(ready) and all(ready))
        return self._complete and any(ready)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    log.warning("ext_proc.not_accepting", error=error.strerror, seconds=EXHAUSTED)
                    await asyncio.sleep(EXHAUSTED)
                continue  # otherwise the connection is gone already
            with connection:
                self.distribute(connection)

    def distribute(self, connection: socket.socket) -> Worker | None:
        """Hand a connection to the worker that should have it; the worker. None if no worker can take it."""
        for worker in sorted(self.workers, key=lambda worker: (not worker.ready, worker.connections)):
            if worker.adopt(connection):
                return worker
        return None

    async def _balance(self) -> None:
        """Proxies that lost a worker have opened their connections to the others by the time when it is back."""
        looks = 0
        while True:
            await asyncio.sleep(LOOK)
            most, least = (choose(self.workers, key=lambda worker: worker.connections) for choose in (max, min))
            uneven = most.connections - least.connections > 1 and all(worker.ready for worker in self.workers)
            looks = looks + 1 if uneven else 0
            if looks >= UNEVEN:
                most.release()

    async def _stop_listening(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait((self._accepting,))
        if self._listener is not None:
            self._listener.close()

    def __repr__(self) -> str:
        return f"<Supervisor {self.id!r} of {len(self.workers)} workers>"


async def _outcome(task: asyncio.Task[None]) -> None:
    """Wait for a task, and raise what it raises, without being its end."""
    await asyncio.shield(task)


class WorkerMetrics(Collector):
    """Metrics of the workers, by their numbers."""

    def __init__(self, workers: Sequence[Worker], pages: WorkerPages) -> None:
        self._workers, self._pages = workers, pages

    def collect(self) -> Iterator[Metric]:
        missing = self._pages.missing
        for kind, name, text, value in (
            (GaugeMetricFamily, "ready", "1 while the worker should get requests", lambda worker: worker.ready),
            (
                GaugeMetricFamily,
                "answered",
                "1 if this page has the worker's metrics; 0 if its counts are those of its last answer",
                lambda worker: worker.id not in missing,
            ),
            (
                GaugeMetricFamily,
                "connections",
                "Open ext_proc connections of the worker",
                lambda worker: worker.connections,
            ),
            (
                CounterMetricFamily,
                "restarts",
                "How often the worker's process ended unasked",
                lambda worker: worker.restarts,
            ),
        ):
            family: Any = kind(f"pointsman_picker_worker_{name}", text, labels=["worker"])
            for worker in self._workers:
                family.add_metric([str(worker.number)], float(value(worker)))
            yield family


def _bind(host: str, port: int, *, shared: bool) -> socket.socket:
    """A listening socket; if `shared`, one that only reserves the port, on which others listen. Raises `Invalid` when
    the address can't be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        if shared:
            with socket.socket(family, socket.SOCK_STREAM) as probe:  # with SO_REUSEPORT, a taken port is no error
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
                probe.listen(1)
                port = probe.getsockname()[1]
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((host, port))
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason = f"{join_host_port(host, port)} can't be bound: {error.strerror or error}; 0 takes a free port"
        raise Invalid([Problem("--grpc-port", reason)]) from error
    return listener
