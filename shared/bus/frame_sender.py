"""Sends attributes: changes within milliseconds, and everything periodically.

A frame of *changes* has the changed attributes of the endpoints that have any, of scrapes that started together. Frames
of *everything* have all attributes of all endpoints: they confirm unchanged values, replace lost frames, and make up a
snapshot of the bucket. Changes have a key of their own, so that they never replace everything.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import structlog

from shared.attributes import AttributeKey, AttributeMap, fault
from shared.bus.errors import BusError
from shared.bus.frame_columns import FrameContent, Row, pack, parts
from shared.bus.messages import MAX_FRAME_ATTRIBUTES
from shared.tasks import set_within

log = structlog.get_logger(__name__)

CHANGES_PART = -1
"""The part number of changes; the parts of everything count from 0."""


class Outbox:
    """What to send, and when. Pure. Everything is due after `refresh` if anything was scraped since, else after
    `heartbeat`."""

    def __init__(self, refresh: float, heartbeat: float) -> None:
        self._refresh = min(refresh, heartbeat)
        self._heartbeat = heartbeat
        self._changed: dict[str, None] = {}
        self._scraped = False
        self._sent_at = float("-inf")

    def note(self, id: str, changed: bool) -> bool:
        """An endpoint was scraped; returns whether something is due earlier than before."""
        earlier = not self._scraped or (changed and not self._changed)
        self._scraped = True
        if changed:
            self._changed[id] = None
        return earlier

    @property
    def changes(self) -> int:
        """Endpoints whose changes wait."""
        return len(self._changed)

    def take_changes(self) -> list[str]:
        """The endpoints that changed, by id; they are taken off the list."""
        taken, self._changed = list(self._changed), {}
        return taken

    def everything_at(self) -> float:
        """When everything is to be sent."""
        return self._sent_at + (self._refresh if self._scraped else self._heartbeat)

    def everything_sent(self, now: float) -> None:
        """Everything is being sent, changes included."""
        self._sent_at = now
        self._scraped = False
        self._changed = {}

    def __repr__(self) -> str:
        return f"<Outbox changes={self.changes} everything_at={self.everything_at():.3f}>"


class Publisher(Protocol):
    """`shared.bus.frame_publisher.FramePublisher`."""

    async def publish(self, part: int, content: FrameContent) -> bool: ...


class Described(Protocol):
    """Something that has attributes."""

    @property
    def attributes(self) -> AttributeMap: ...


class FrameSender:
    """Sends what is due. `endpoints` gives what is known of each by id. A change waits for others until `gathered` is
    called, at most `gather` seconds."""

    def __init__(
        self,
        publisher: Publisher,
        endpoints: Callable[[], Mapping[str, Described]],
        *,
        linger: float,
        refresh: float,
        heartbeat: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publisher = publisher
        self._endpoints = endpoints
        self._linger = linger
        self._clock = clock
        self._outbox = Outbox(refresh, heartbeat)
        self._earlier = asyncio.Event()
        self._gathered = asyncio.Event()
        """Nothing waits for others any more. Unset while there is no change."""
        self.frames = 0
        """Frames that NATS was given."""
        self.dropped = 0
        """Frames that weren't, because there is no connection."""
        self.bytes = 0
        """Bytes of the columns in the frames that NATS was given."""
        self.oversized = 0
        """Endpoints left out because their attributes alone are more than a message takes."""
        self._unsendable: set[AttributeKey[Any]] = set()
        """Attributes of which the log has said that one couldn't be encoded."""

    def note(self, id: str, changed: bool) -> None:
        """The attributes of an endpoint were confirmed, or have changed."""
        if self._outbox.note(id, changed):
            self._earlier.set()

    def gathered(self) -> None:
        """No further changes are about to come that could share a frame with the waiting ones."""
        if self._outbox.changes:
            self._gathered.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._until_due()
            await self.send()

    async def _until_due(self) -> None:
        while (left := self._outbox.everything_at() - self._clock()) > 0:
            if self._outbox.changes:
                await set_within(self._gathered, min(self._linger, left))
                return
            self._earlier.clear()
            if not await set_within(self._earlier, left):
                return  # everything is due

    async def send(self) -> None:
        """Send what is due now."""
        self._gathered.clear()
        now = self._clock()
        endpoints = self._endpoints()
        if now >= self._outbox.everything_at():
            self._outbox.everything_sent(now)
            part = 0
            for endpoint in endpoints.values():
                endpoint.attributes.take_changed()
            for rows in parts([(id, known.attributes) for id, known in endpoints.items() if len(known.attributes)]):
                part += await self._send(rows, part, 1)
                await asyncio.sleep(0)  # a thousand endpoints take milliseconds, and scrapes are under way
        else:
            changed = self._outbox.take_changes()
            known = [(id, endpoints[id].attributes) for id in changed if id in endpoints]
            keys = {key for _, attributes in known for key in attributes.take_changed()}
            for rows in parts(known) if keys else ():
                await self._send(rows, CHANGES_PART, 0, keys)

    async def _send(
        self, rows: Sequence[Row], part: int, step: int, keys: Collection[AttributeKey[Any]] | None = None
    ) -> int:
        """Send rows as one frame, or in halves if a message or a frame can't hold them; only the attributes `keys`, if
        given. The frames' parts are `part`, `part + step` and so on. Returns the number of frames."""
        packed = pack(rows, self._clock(), keys)
        crowded = packed.crowded
        if crowded and len(rows) > 1:
            return await self._send_halves(rows, part, step, keys)
        if packed.attributes > MAX_FRAME_ATTRIBUTES or (crowded and packed.attributes > 1):
            every = dict.fromkeys(key for _, attributes in rows for key, _ in attributes.items())
            named = [key for key in every if keys is None or key in keys]
            middle = len(named) // 2
            first = await self._send(rows, part, step, named[:middle])
            return first + await self._send(rows, part + first * step, step, named[middle:])
        try:
            sent = await self._publisher.publish(part, packed)
        except BusError as error:
            if len(rows) == 1:
                self.oversized += 1
                log.warning("frame.oversized", endpoint=packed.ids[0], reason=str(error))
                return 0
            return await self._send_halves(rows, part, step, keys)
        except Exception:  # whatever a plugin's object does when it is encoded
            if not self._deny_unsendable(rows):
                raise
            return await self._send(rows, part, step, keys)
        if sent:
            self.frames += 1
            self.bytes += packed.size
        else:
            self.dropped += 1
        return 1

    async def _send_halves(
        self, rows: Sequence[Row], part: int, step: int, keys: Collection[AttributeKey[Any]] | None
    ) -> int:
        half = len(rows) // 2
        first = await self._send(rows[:half], part, step, keys)
        return first + await self._send(rows[half:], part + first * step, step, keys)

    def _deny_unsendable(self, rows: Sequence[Row]) -> bool:
        """Deny values that can't be encoded, which would hold up all others: they have changed since they were put.
        Returns whether there are any."""
        found = False
        for id, attributes in rows:
            for key, sample in list(attributes.items()):
                if sample.value is None or not (reason := fault(key, sample.value)):
                    continue
                attributes.deny(key, sample.at)
                found = True
                if key not in self._unsendable:
                    self._unsendable.add(key)
                    log.error("attribute.unsendable", endpoint=id, attribute=key.wire, reason=reason)
        return found

    def __repr__(self) -> str:
        return f"<FrameSender frames={self.frames} dropped={self.dropped} {self._outbox!r}>"
