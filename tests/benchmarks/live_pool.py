"""A pool that lives, for benchmarks of whole picker processes: nats-server, facts, frames 20 times a second, pickers as
they are installed; and what processes cost.

Whoever is measured gets the first core, everything else the last.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from pointsman.local.envoy import PickerAddress
from pointsman.local.ports import Ports
from pointsman.local.process import Process
from pointsman.local.services import Address, Picker, ServiceProcess
from services.picker.transport.grpc_server import Transport
from shared.attributes import (
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
)
from shared.bus.columns import pack_ages, pack_floats
from shared.bus.connection import Bus
from shared.bus.frame_bucket import FrameBucket
from shared.bus.frame_columns import FrameContent
from shared.bus.frame_publisher import FramePublisher
from shared.bus.publisher import FactPublisher
from shared.bus.subjects import Subjects, fact_key, pool_token
from shared.model import Endpoint, Fact, ModelRewrite, RewriteRule, Target
from tests.benchmarks.bench_decide import WEIGHTED_SUM
from tests.nats import NatsServer
from tests.waiting import TIMEOUT, eventually

TRANSPORTS: tuple[Transport, ...] = ("http2", "grpcio")
MEASURED, OTHERS = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
"""Cores."""
FRAMES_PER_SECOND = 20
RENAMED, TARGET = "base", "base-v2"
NONE: Mapping[str, str] = {}
SUBJECTS, POOL = Subjects(), pool_token("default", "default")
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
_CPUCLOCK_SCHED = 2


def cpu(process: Process | NatsServer) -> float:
    """CPU seconds that a process has used (the clock of clock_getcpuclockid(3), which counts nanoseconds)."""
    assert process.pid is not None
    return time.clock_gettime(~process.pid << 3 | _CPUCLOCK_SCHED)


def resident(process: Process) -> int:
    """Bytes of resident memory (proc(5), statm)."""
    return int(Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_SIZE


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Processes that start within stay on this core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    """(p50, p99) in ms."""
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
    return float(p50), float(p99)


def endpoints(count: int, network: str = "10.1", port: int = 8000) -> list[Endpoint]:
    """Endpoints whose addresses are equally long."""
    return [
        Endpoint(
            id=f"default/m{number}",
            name=f"m{number}",
            address=f"{network}.{100 + number // 100}.{100 + number % 100}",
            port=port,
        )
        for number in range(count)
    ]


def facts(pool: Sequence[Endpoint], *, rewrite: bool = False) -> dict[str, Fact]:
    """By key; with `rewrite`, the model of requests is another at the servers."""
    rules = (RewriteRule(models=(RENAMED,), targets=(Target(model=TARGET),)),)
    rewrites = [ModelRewrite(name="renames", rules=rules)] if rewrite else []
    everything: list[Fact] = [*pool, *rewrites]
    return {fact_key(POOL, fact): fact for fact in everything}


def frame(pool: Sequence[Endpoint], random: np.random.Generator) -> FrameContent:
    """Attributes of all endpoints."""
    count = len(pool)
    values = {
        WAITING_QUEUE_SIZE: random.integers(0, 20, count),
        RUNNING_REQUESTS_SIZE: random.integers(0, 100, count),
        KV_CACHE_USAGE: random.random(count),
        CACHE_BLOCK_SIZE: np.full(count, 16.0),
        CACHE_NUM_BLOCKS: np.full(count, 20_000.0),
    }
    return FrameContent(
        ids=tuple(endpoint.id for endpoint in pool),
        columns={key.wire: pack_floats(column) for key, column in values.items()},
        ages={key.wire: pack_ages(np.zeros(count)) for key in values},
    )


class LivePool:
    """Facts and, unless collectors do, frames of endpoints, and the processes that read them."""

    def __init__(
        self, pool: Sequence[Endpoint], *, rewrite: bool = False, frames: bool = True, nats_core: int = OTHERS
    ) -> None:
        self.endpoints = pool
        self._facts = facts(pool, rewrite=rewrite)
        self._frames, self._nats_core = frames, nats_core
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        os.sched_setaffinity(0, {OTHERS})
        self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self.ports = self._stack.enter_context(Ports())
        self.nats = NatsServer(self.directory / "nats")
        self._stack.callback(self.nats.kill)
        with on_core(self._nats_core):
            await self.nats.start()
        bus = await self._stack.enter_async_context(Bus(self.nats.url, name="owner"))
        await bus.wait_connected(TIMEOUT)
        bucket = FrameBucket(bus, SUBJECTS)
        await bucket.start()
        self._stack.push_async_callback(bucket.close)
        owner = FactPublisher(bus, SUBJECTS, "owner")
        self._tasks.append(asyncio.create_task(owner.run()))
        owner.update(self._facts, [POOL])
        await eventually(lambda: owner.published, lambda: owner)
        if self._frames:
            self._tasks.append(asyncio.create_task(self._publish(bus)))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._stack.aclose()

    async def _publish(self, bus: Bus) -> None:
        publisher, random = FramePublisher(bus, SUBJECTS, POOL, "collector"), np.random.default_rng(7)
        try:
            while True:
                await publisher.publish(0, frame(self.endpoints, random))
                await asyncio.sleep(1 / FRAMES_PER_SECOND)
        finally:
            await publisher.close()

    async def picker(self, transport: Transport, flags: Mapping[str, str] = NONE) -> Picker:
        """A picker process that is ready and has seen a frame."""
        address = PickerAddress(self.ports.take("ext_proc"), self.ports.take("health"))
        http, own = self._admin(f"picker-{transport}", flags)
        given = {"config-file": str(WEIGHTED_SUM), **own, "transport": transport, "secure-serving": "false"}
        picker = Picker(str(own["id"]), self.directory, http, address, given)
        await self.run(picker, MEASURED)

        async def sees() -> bool:
            return bool((await picker.state())["view"]["frames"])

        await eventually(sees, "a frame", step=0.05)
        return picker

    async def collector(self, flags: Mapping[str, str] = NONE) -> ServiceProcess:
        """A collector process that is ready."""
        http, own = self._admin("collector", flags)
        process = ServiceProcess("collector", "collector", self.directory, http, own)
        await self.run(process, MEASURED)
        return process

    async def run(self, process: Process, core: int) -> None:
        """Start a process on a core; it is killed at the end."""
        self._stack.push_async_callback(process.kill)
        with on_core(core):
            await process.start()

    def _admin(self, id: str, flags: Mapping[str, str]) -> tuple[Address, dict[str, str | int | float]]:
        """Where a tier's process serves its pages, and its flags."""
        http = Address(self.ports.take(f"admin of {id}"))
        own: dict[str, str | int | float] = {
            "id": id,
            "nats-url": self.nats.url,
            "admin-host": http.host,
            "admin-port": http.port,
        }
        return http, {**own, "log-level": "warning", **flags}
