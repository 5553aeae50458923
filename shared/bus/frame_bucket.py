"""The attributes bucket. Watchers create it, and collectors only write to it.

NATS doesn't check a stream's configuration against the login that creates it, and a stream can publish what it gets
under any subject. Without a watcher, frames still reach the readers; only new readers get no snapshot.
"""

import asyncio
from contextlib import AsyncExitStack

import structlog

from shared.bus import jetstream
from shared.bus.connection import Bus
from shared.bus.errors import BusError
from shared.bus.frame_reader import ATTRIBUTES_TTL
from shared.bus.subjects import Subjects
from shared.tasks import cancel, set_within

CHECK = 5.0
"""Seconds between two looks whether the bucket is there."""
MAX_BYTES = 32 * 2**20
"""Of all frames: those of 10 000 endpoints take about 4 MB. The lease is in the same memory: a collector that filled it
would keep watchers from leading."""


class FrameBucket:
    """Creates or repairs the bucket at every connection, and every `check` seconds. `ttl`: seconds after which the
    bucket drops a frame."""

    def __init__(self, bus: Bus, subjects: Subjects, *, ttl: float = ATTRIBUTES_TTL, check: float = CHECK) -> None:
        self._bus = bus
        self._bucket = jetstream.Bucket(name=subjects.attributes_bucket, storage="memory", ttl=ttl, max_bytes=MAX_BYTES)
        self._check = check
        self._wake = asyncio.Event()
        self._failure = ""
        self._started = AsyncExitStack()
        self._log = structlog.get_logger()

    async def start(self) -> None:
        """Doesn't wait for the bucket."""
        self._started.push_async_callback(cancel, asyncio.create_task(self._run(), name="frame-bucket"))
        self._started.callback(self._bus.on_connect(self._wake.set))

    async def close(self) -> None:
        await self._started.aclose()

    async def _run(self) -> None:
        while True:
            await set_within(self._wake, self._check)
            self._wake.clear()
            if self._bus.connected:
                await self._ensure()

    async def _ensure(self) -> None:
        try:
            ensured = await jetstream.ensure_bucket(self._bus, self._bucket)
        except BusError as error:
            reason = str(error)
            if reason != self._failure:
                self._log.warning("frames.bucket.failed", bucket=self._bucket.name, reason=reason)
            self._failure = reason
        else:
            self._failure = ""
            if ensured.changed:
                self._log.info("frames.bucket.created", bucket=self._bucket.name)

    def __repr__(self) -> str:
        return f"<FrameBucket {self._bucket.name!r}{f': {self._failure}' if self._failure else ''}>"
