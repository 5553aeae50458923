"""News of one topic as server-sent events, for any number of listeners.

The work is done once for all listeners, and only while there are any. A listener gets the whole, then what changes. One
that is too slow for the changes that are kept gets the whole again, so nothing is queued for it.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import structlog

from shared.service.pages import slices
from shared.tasks import set_within

KEPT = 30
"""Changes that are kept for listeners."""
SILENCE = 10.0
"""Seconds without news after which a listener gets a comment: it shows that the connection lives."""
RECONNECT_MS = 200
"""When a browser opens a stream again that has ended."""


class Topic(Protocol):
    """The subject of a feed."""

    async def refresh(self) -> bytes | None:
        """Look at what is new, and return it as an event; None if nothing is."""
        ...

    async def whole(self) -> bytes:
        """Everything as an event, as of the last `refresh`. There is no other meanwhile."""
        ...


def event(name: str, document: bytes) -> bytes:
    """An event with a JSON document, which has no line breaks."""
    return b"event: " + name.encode() + b"\ndata: " + document + b"\n\n"


class Feed:
    """Refreshes a topic every `interval` seconds while somebody listens. A stream ends after `lifetime` seconds."""

    def __init__(
        self, topic: Topic, interval: float, lifetime: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._topic, self._interval, self._lifetime, self._clock = topic, interval, lifetime, clock
        self._changes: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._version = 0
        self._whole: bytes | None = None
        """As of the last refresh, once somebody has asked for it."""
        self._refreshing = asyncio.Lock()
        self._refreshed_at = float("-inf")
        self._news = asyncio.Event()
        """Replaced at each change."""
        self._wanted = asyncio.Event()
        self._closed = False
        self.listeners = 0
        self.failed = 0
        """Refreshes by `run` that raised an error."""

    def close(self) -> None:
        """Let all streams end."""
        self._closed = True
        self._news.set()

    async def run(self) -> None:
        """Refresh until cancelled. The first of several errors in a row is logged."""
        failing = False
        due = time.monotonic()
        while True:
            await self._wanted.wait()
            try:
                await self.refresh()
                failing = False
            except Exception:  # noqa: BLE001 - the top of the task: what can't be shown once may be the next time
                if not failing:
                    structlog.get_logger().exception("feed.failed", topic=repr(self._topic))
                self.failed += 1
                failing = True
            due = max(due + self._interval, time.monotonic())  # the refresh itself takes a part of the interval
            await asyncio.sleep(due - time.monotonic())

    async def listen(self) -> AsyncGenerator[bytes, None]:
        """The events of one stream. Whoever takes them closes the generator, or else goes on listening."""
        end = self._clock() + self._lifetime
        with self._listening():
            await self.refresh()
            shown, seen = await self._get_whole()
            opening = f"retry: {RECONNECT_MS}\n\n".encode()
            for piece in slices(shown):
                yield opening + piece
                opening = b""
            while not self._closed and (rest := end - self._clock()) > 0:
                if seen == self._version and not await set_within(self._news, min(rest, SILENCE)):
                    yield b":\n\n"
                    continue
                if not (missed := self._version - seen):
                    continue  # the feed has closed
                if missed <= len(self._changes):
                    seen, shown = self._changes[-missed]
                else:
                    shown, seen = await self._get_whole()
                for piece in slices(shown):  # of one event: that of a listener who doesn't read stays in memory
                    yield piece

    async def refresh(self) -> None:
        """Refresh now, unless that has just happened."""
        async with self._refreshing:
            if self._clock() - self._refreshed_at < self._interval / 2:
                return  # somebody else has just done so
            self._refreshed_at = self._clock()
            change = await self._topic.refresh()
            self._whole = None
            if change is not None:
                self._version += 1
                self._changes.append((self._version, change))
                news, self._news = self._news, asyncio.Event()
                news.set()

    async def _get_whole(self) -> tuple[bytes, int]:
        """The whole, and its version."""
        async with self._refreshing:
            if self._whole is None:
                self._whole = await self._topic.whole()
            return self._whole, self._version

    @contextmanager
    def _listening(self) -> Iterator[None]:
        self.listeners += 1
        self._wanted.set()
        try:
            yield
        finally:
            self.listeners -= 1
            if not self.listeners:
                self._wanted.clear()

    def __repr__(self) -> str:
        return f"<Feed of {self._topic!r}: {self.listeners} listeners, {self._version} changes>"
