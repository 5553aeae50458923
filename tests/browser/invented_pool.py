"""A pool on a real bus that nobody serves: its owner's facts, a collector's frames, a picker's load."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from shared.attributes import (
    ACTIVE_MODELS,
    KV_CACHE_USAGE,
    REACHABLE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    AttributeMap,
)
from shared.bus.codec import encode
from shared.bus.columns import endpoint_hash, pack_counts, pack_hashes
from shared.bus.connection import Bus
from shared.bus.frame_columns import FrameContent, pack, parts
from shared.bus.frame_publisher import FramePublisher
from shared.bus.membership import Membership
from shared.bus.messages import Load, QueueTable
from shared.bus.subjects import Subjects
from shared.model import Endpoint
from tests.nats import NatsServer, nats_server
from tests.protocol.collector.harness import POOL, Owner
from tests.waiting import TIMEOUT

COLLECTOR, PICKER = "collector-1", "picker-1"


def invented(name: str, number: int = 1, **labels: str) -> Endpoint:
    """An endpoint of this name."""
    address = f"10.0.{number // 250}.{number % 250 + 1}"
    return Endpoint(id=f"default/{name}", name=name, address=address, port=8000, labels=labels)


class InventedPool:
    """What is on the bus. Numbers change with each `tick`. With `prepared`, so many sets of numbers are made in advance
    and repeated, which leaves the time to those who are measured."""

    def __init__(self, nats: NatsServer, endpoints: Sequence[Endpoint], seed: int = 1, prepared: int = 0) -> None:
        self.nats, self.endpoints = nats, list(endpoints)
        self.owner = Owner(nats.url)
        self.reachable = dict.fromkeys((endpoint.id for endpoint in endpoints), 1.0)
        self.queue: QueueTable | None = None
        self._bus = Bus(nats.url, name="invented")
        self._subjects = Subjects()
        self._frames = FramePublisher(self._bus, self._subjects, POOL, COLLECTOR)
        self._members = Membership(self._bus, self._subjects, POOL, "collector", COLLECTOR, lambda _: None)
        self._random = random.Random(seed)
        self._sequence = 0
        self._task: asyncio.Task[None] | None = None
        self.ticks = 0
        now = time.monotonic()
        self._prepared = [self._contents(now) for _ in range(prepared)]

    async def start(self, interval: float = 0.1) -> None:
        """Publish everything, and new numbers every `interval` seconds."""
        await self.owner.start()
        await self.owner.publish(self.endpoints)
        await self._members.start()
        await self._bus.start()
        await self._bus.wait_connected(TIMEOUT)
        self._task = asyncio.create_task(self._run(interval))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._members.close()
        await self._frames.close()
        await self._bus.close()
        await self.owner.close()

    async def replace(self, endpoints: Sequence[Endpoint]) -> None:
        """From here on these are the endpoints."""
        self.endpoints = list(endpoints)
        self.reachable = {endpoint.id: self.reachable.get(endpoint.id, 1.0) for endpoint in endpoints}
        await self.owner.publish(self.endpoints)

    async def _run(self, interval: float) -> None:
        due = time.monotonic()
        while True:
            await self.tick()
            due = max(due + interval, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    async def tick(self) -> None:
        """New numbers of every endpoint."""
        now = time.monotonic()
        contents = self._prepared[self.ticks % len(self._prepared)] if self._prepared else self._contents(now)
        for part, content in enumerate(contents):
            await self._frames.publish(part, content)
        self.ticks += 1
        self._sequence += 1
        hashes = [endpoint_hash(endpoint.id) for endpoint in self.endpoints]
        load = Load(
            sender=PICKER,
            sent=now,
            sequence=self._sequence,
            run=1,
            ids=pack_hashes(hashes),
            requests=pack_counts(np.arange(len(hashes)) % 7),
            tokens=pack_counts(np.full(len(hashes), 100)),
            queue=self.queue,
        )
        await self._bus.publish(self._subjects.load(POOL, PICKER), encode(load))

    def _contents(self, now: float) -> list[FrameContent]:
        """New numbers of every endpoint, as frames."""
        chance, rows = self._random, []
        for endpoint in self.endpoints:
            attributes = AttributeMap()
            attributes.put(WAITING_QUEUE_SIZE, float(chance.randrange(10)), now)
            attributes.put(RUNNING_REQUESTS_SIZE, float(chance.randrange(40)), now)
            attributes.put(KV_CACHE_USAGE, chance.random(), now)
            attributes.put(REACHABLE, self.reachable[endpoint.id], now)
            attributes.put(ACTIVE_MODELS, ("adapter-a",), now)
            rows.append((endpoint.id, attributes))
        return [pack(part, now) for part in parts(rows)]

    def __repr__(self) -> str:
        return f"<InventedPool of {len(self.endpoints)} endpoints>"


@asynccontextmanager
async def invented_pool(
    directory: Path, endpoints: Sequence[Endpoint], *, interval: float = 0.1, prepared: int = 0
) -> AsyncIterator[InventedPool]:
    """The pool on a nats-server of its own."""
    async with nats_server(directory / "nats") as nats:
        pool = InventedPool(nats, endpoints, prepared=prepared)
        try:
            await pool.start(interval)
            yield pool
        finally:
            await pool.close()
