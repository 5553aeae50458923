"""The reader of the attributes bucket: frames of all collectors of a pool, with the age that they gained on their way.

Live frames come from the bucket's own subject. A snapshot at the start and after a reconnect adds earlier frames.
Nobody knows how long they were stored, so they count as one time to live old. A frame only updates: the watcher says
which endpoints exist.
"""

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TypeAlias

import structlog
from nats.aio.msg import Msg

from shared.bus import jetstream
from shared.bus.connection import Bus
from shared.bus.errors import BusError, NoResponders
from shared.bus.incarnations import decode_verified
from shared.bus.messages import Frame
from shared.bus.queueing_delay import IMPLAUSIBLE, QueueingDelays
from shared.bus.replies import STREAM
from shared.bus.subjects import Subjects
from shared.limits import LIMITS
from shared.tasks import cancel

OnFrame: TypeAlias = Callable[[Frame, float], None]
"""Called with a frame and the seconds to add to each of its ages."""

ATTRIBUTES_TTL = 5.0
"""Seconds after which the attributes bucket forgets a frame."""

WINDOW = 60.0
"""Seconds after which what is known of a sender that is silent is forgotten."""
RETRY = 0.25
"""Seconds until a snapshot that failed is tried again."""
OVERTAKEN = 1000
"""By how many frames one that was overtaken may be behind: 20 a second for three quarters of a minute."""


class FrameSequence:
    """Tells which frames are new: those later than the last live one of their key, or of another run. A frame that is
    far behind isn't late: an earlier frame had a forged number. For keys beyond `limit`, all frames are new."""

    def __init__(self, limit: int = LIMITS.max_runs) -> None:
        self._limit = limit
        self._newest: dict[str, tuple[int, int, float]] = {}

    def live(self, key: str, frame: Frame, now: float) -> None:
        """Record a live frame. A late frame doesn't count as the last one."""
        if key not in self._newest and len(self._newest) >= self._limit:
            return
        if self.news(key, frame) or frame.sequence < self._newest[key][1] - OVERTAKEN:
            self._newest[key] = (frame.run, frame.sequence, now)

    def news(self, key: str, frame: Frame) -> bool:
        """Whether a frame is newer than the live ones."""
        newest = self._newest.get(key)
        return newest is None or frame.run != newest[0] or frame.sequence > newest[1]

    def prune(self, before: float) -> None:
        """Forget keys of which nothing came live since `before`."""
        for key in [key for key, newest in self._newest.items() if newest[2] < before]:
            del self._newest[key]

    def __len__(self) -> int:
        return len(self._newest)


class FrameReader:
    """Passes each frame of a pool (a token) to `on_frame`. After a reconnect, a frame may be older than earlier
    ones."""

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        pool: str,
        on_frame: OnFrame,
        *,
        ttl: float = ATTRIBUTES_TTL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self.pool = pool
        self._on_frame = on_frame
        self._ttl = ttl
        self._clock = clock
        self.malformed = bus.malformed
        self._delays = QueueingDelays(WINDOW, bus.limits.max_runs)
        self._order = FrameSequence(bus.limits.max_runs)
        self._prune_at = clock() + WINDOW
        self._snapshot: asyncio.Task[None] | None = None
        self._started = AsyncExitStack()
        self._log = structlog.get_logger()
        self.frames = 0
        """Live frames."""
        self.snapshot_frames = 0
        self.received_at: float | None = None
        """When the last live frame came."""

    async def start(self) -> None:
        """Subscribe, and take a snapshot at every connection; doesn't wait for either."""
        subscription = await self._bus.subscribe(self._subjects.frames(self.pool), self._receive)
        self._started.push_async_callback(subscription.unsubscribe)
        self._started.callback(self._bus.on_connect(self._connected))

    async def close(self) -> None:
        await self._started.aclose()
        if self._snapshot is not None:
            await cancel(self._snapshot)

    def age(self) -> float:
        """Seconds since the last live frame; infinite before the first."""
        return math.inf if self.received_at is None else self._clock() - self.received_at

    def _receive(self, message: Msg) -> None:
        now = self._clock()
        if STREAM in (message.headers or {}):
            problem = "an answer about a stored frame, which isn't the present one"
            self.malformed.report(Subjects.sender(message.subject, -2), problem, subject=message.subject)
            return
        frame = self._decoded(message.data, message.subject)
        if frame is None:
            return
        extra_age = self._delays.observe(frame.sender, frame.run, frame.sent, now)
        if extra_age is None:
            self.malformed.implausible.report(frame.sender, IMPLAUSIBLE, subject=message.subject)
            return
        self._order.live(message.subject, frame, now)
        self.frames += 1
        self.received_at = now
        self._on_frame(frame, extra_age)
        if now >= self._prune_at:
            self._prune_at = now + WINDOW
            self._delays.prune(now - WINDOW)
            self._order.prune(now - WINDOW)

    def _connected(self) -> None:
        if self._snapshot is not None:
            self._snapshot.cancel()
        self._snapshot = asyncio.create_task(self._fill(), name=f"frames {self.pool}")

    async def _fill(self) -> None:
        try:
            await self._take_snapshot()
        except Exception:  # noqa: BLE001 - the top of the task; live frames go on
            self._log.exception("frames.snapshot.failed", pool=self.pool)

    async def _take_snapshot(self) -> None:
        """Try until it works or no longer matters: what was stored before has expired after one time to live."""
        until = self._clock() + self._ttl
        while self._clock() < until:
            try:
                await jetstream.snapshot(
                    self._bus,
                    self._subjects.attributes_bucket,
                    self._subjects.frames(self.pool),
                    read=self._fill_in,
                )
            except NoResponders:
                return  # no bucket, so no frames: its owner makes one, and then frames come live
            except BusError as error:
                self._log.info("frames.snapshot.failed", pool=self.pool, reason=str(error))
                await asyncio.sleep(RETRY)
                continue
            return

    def _fill_in(self, stored: jetstream.Stored) -> None:
        if stored.headers.get(jetstream.OPERATION):
            return
        frame = self._decoded(stored.data, stored.subject)
        if frame is not None and self._order.news(stored.subject, frame):
            self.snapshot_frames += 1
            self._on_frame(frame, self._ttl)

    def _decoded(self, data: bytes, subject: str) -> Frame | None:
        return decode_verified(Frame, data, subject, self.malformed, lambda frame: frame.sender, -2)

    def __repr__(self) -> str:
        return (
            f"<FrameReader {self.pool!r} frames={self.frames} snapshot_frames={self.snapshot_frames} "
            f"age={self.age():.1f} malformed={self.malformed.total}>"
        )
