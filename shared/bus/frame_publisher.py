"""Sends a collector's frames without waiting for acknowledgements.

The next frame replaces a lost one. Once a second, a frame is sent with an acknowledgement, which shows whether the
bucket gets them. Watchers create the bucket (`shared.bus.frame_bucket`).
"""

import asyncio
import secrets
import time
from collections.abc import Callable

from msgspec import structs

from shared.bus import jetstream
from shared.bus.codec import encode
from shared.bus.connection import Bus
from shared.bus.errors import BusError
from shared.bus.frame_columns import FrameContent
from shared.bus.messages import Frame
from shared.bus.subjects import Subjects
from shared.tasks import cancel

ACK_TIMEOUT = 0.5
"""Seconds without an acknowledgement after which a frame counts as unacknowledged."""


class FramePublisher:
    """Publishes frames of one sender (a collector's id) about one pool (its token). `check_interval`: seconds between
    two acknowledged frames."""

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        pool: str,
        sender: str,
        *,
        check_interval: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self.pool = pool
        self.sender = sender
        self._check_interval = check_interval
        self._clock = clock
        self._check_at = clock() + check_interval
        self._task: asyncio.Task[None] | None = None
        """A frame's acknowledgement is awaited."""
        self._run = secrets.randbits(63)
        self.sequence = 0
        self.dropped = 0
        """Frames that were dropped because there was no connection."""
        self.acknowledged = 0
        self.unacknowledged = 0

    async def close(self) -> None:
        if self._task is not None:
            await cancel(self._task)

    async def publish(self, part: int, content: FrameContent) -> bool:
        """Send one part of the sender's endpoints. Returns False if it was dropped because there is no connection.
        Raises BusError for a frame that is too large."""
        now = self._clock()
        self.sequence += 1
        frame = Frame(
            sender=self.sender,
            sent=now,
            sequence=self.sequence,
            run=self._run,
            **structs.asdict(content),
        )
        subject, payload = self._subjects.frame(self.pool, self.sender, part), encode(frame)
        fits = len(payload) <= self._bus.max_payload  # otherwise `Bus.publish` says so
        if fits and now >= self._check_at and self._bus.connected and (self._task is None or self._task.done()):
            self._check_at = now + self._check_interval
            self._task = asyncio.create_task(self._publish_acknowledged(subject, payload), name="frame-check")
            return True
        if await self._bus.publish(subject, payload):
            return True
        self.dropped += 1
        return False

    async def _publish_acknowledged(self, subject: str, payload: bytes) -> None:
        try:
            await jetstream.put(self._bus, subject, payload, timeout=ACK_TIMEOUT)
        except BusError:
            self.unacknowledged += 1
        else:
            self.acknowledged += 1

    def __repr__(self) -> str:
        return (
            f"<FramePublisher {self.sender!r} of {self.pool!r} sequence={self.sequence} dropped={self.dropped} "
            f"acknowledged={self.acknowledged} unacknowledged={self.unacknowledged}>"
        )
