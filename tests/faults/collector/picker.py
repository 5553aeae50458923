"""What a picker sees of the attributes, through the code that a picker has; every step is checked.

The model servers of these tests say on each page when they wrote it, so a value that is smaller than the one before is
an older one.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import numpy as np

from services.picker.state.view import View
from shared.attributes import WAITING_QUEUE_SIZE
from shared.bus.connection import Bus
from shared.bus.facts import Delete, Event, Reset, Upsert
from shared.bus.frame_reader import FrameReader
from shared.bus.messages import Frame
from shared.bus.replica import Replica
from shared.bus.subjects import Subjects
from tests.protocol.collector.harness import POOL, OddServer, answer
from tests.soak.promises import soaking
from tests.waiting import TIMEOUT

FRESH = 0.6
"""Seconds: younger is fresh. Servers are scraped ten times a second, and unchanged values are confirmed as often."""
OVERLAP = 0.3 if soaking() else 3.0
"""Seconds by which a value may be older than the one before it: two scrapes of two collectors that overlap are taken in
the order in which they began, which needn't be that in which they were answered. A process that stands still makes that
long, so that tests which look for the old values of a fault let it last longer."""


class Servers:
    """Model servers whose pages say when they were written."""

    def __init__(self, count: int) -> None:
        self._stack = AsyncExitStack()
        self._count = count
        self.by_name: dict[str, OddServer] = {}

    async def __aenter__(self) -> "Servers":
        for number in range(self._count):
            self.by_name[f"m{number}"] = await self._stack.enter_async_context(OddServer(self._answer))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        page = f"vllm:num_requests_waiting {time.monotonic():.6f}\nvllm:num_requests_running 1\n"
        writer.write(answer(page.encode()))


class PickerView:
    """A picker's view of the endpoints and their attributes."""

    def __init__(self, url: str) -> None:
        self._bus = Bus(url, name="picker")
        self.view = View()
        self._replica = Replica(self._bus, Subjects(), POOL, self._on_event)
        self._reader = FrameReader(self._bus, Subjects(), POOL, self._on_frame)
        self.went_back: list[str] = []
        """What shouldn't happen: an endpoint whose value was replaced by an older one."""
        self.senders: set[str] = set()

    async def __aenter__(self) -> "PickerView":
        await self._replica.start()
        await self._reader.start()
        await self._bus.start()
        await self._bus.wait_connected(TIMEOUT)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._reader.close()
        await self._replica.close()
        await self._bus.close()

    def _on_event(self, event: Event) -> None:
        match event:
            case Reset(facts=facts):
                self.view.reset(facts)
            case Upsert(key=key, fact=fact):
                self.view.upsert(key, fact)
            case Delete(key=key):
                self.view.delete(key)

    def _on_frame(self, frame: Frame, extra: float) -> None:
        _ = self.view.layout
        before = self._waiting().values, self._waiting().at
        self.view.apply_frame(frame, time.monotonic(), extra)
        after = self._waiting().values, self._waiting().at
        self.senders.add(frame.sender)
        for row, endpoint in enumerate(self.view.layout.endpoints):
            if after[0][row] < before[0][row] - OVERLAP or after[1][row] < before[1][row]:
                was, now = before[0][row], after[0][row]
                self.went_back.append(f"{endpoint.id} by {was - now:.3f} s with a frame of {frame.sender}")

    def _waiting(self) -> Any:
        return self.view.columns.numbers(WAITING_QUEUE_SIZE.wire)

    def ages(self) -> dict[str, float]:
        """By endpoint: how old its value says that it is, and how old the page is that it was on, whichever is more."""
        _ = self.view.layout
        now, column = time.monotonic(), self._waiting()
        ages = np.maximum(now - column.at, now - np.nan_to_num(column.values, nan=-np.inf))
        return {endpoint.id: float(age) for endpoint, age in zip(self.view.layout.endpoints, ages, strict=True)}

    def fresh(self, count: int) -> bool:
        """Whether there are so many endpoints, all of which have fresh values."""
        ages = self.ages()
        return len(ages) == count and max(ages.values()) < FRESH

    def too_young(self) -> list[str]:
        """Endpoints whose value is older than it says that it is, by more than `OVERLAP`."""
        _ = self.view.layout
        column = self._waiting()
        return [
            f"{endpoint.id} by {at - value:.3f} s"
            for endpoint, value, at in zip(self.view.layout.endpoints, column.values, column.at, strict=True)
            if at - value > OVERLAP
        ]
