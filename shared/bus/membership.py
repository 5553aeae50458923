"""Which collectors are alive: heartbeats on a core subject, and the table that they keep.

Nobody coordinates: every member sees the same table within an interval and computes its own share from it. Without a
connection, a member can't know who is alive, so its table is frozen until the others had time to send a heartbeat;
otherwise each would take itself for the last one.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import structlog
from nats.aio.msg import Msg

from shared.bus.codec import SHOWN, encode
from shared.bus.connection import Bus
from shared.bus.duplicate_id import DuplicateId
from shared.bus.heartbeat import EXPIRY, INTERVAL, beat
from shared.bus.incarnations import decode_verified
from shared.bus.messages import Member
from shared.bus.subjects import Subjects
from shared.limits import LIMITS
from shared.tasks import cancel, set_within

GATHER = 0.02
"""Seconds after a change in which others join it."""
NAMED = 20
"""Members that a line of the log names."""


class Members:
    """Members that were seen lately, by the receiver's monotonic clock. Beyond `limit`, new ones are ignored until
    others leave or fall silent."""

    def __init__(self, expiry: float = EXPIRY, limit: int = LIMITS.max_senders) -> None:
        self._expiry = expiry
        self._limit = limit
        self._last_seen: dict[str, float] = {}
        self._paused = False

    def observe(self, member: Member, now: float) -> bool:
        """Process a heartbeat; returns whether a member joined or left with it."""
        known = member.id in self._last_seen
        if member.leaving:
            self._last_seen.pop(member.id, None)
            return known
        if not known and len(self._last_seen) >= self._limit:
            return False
        self._last_seen[member.id] = now
        return not known

    def expire(self, now: float) -> tuple[str, ...]:
        """Remove those that were silent for too long, and return them."""
        if self._paused:
            return ()
        gone = tuple(sorted(id for id, seen in self._last_seen.items() if now - seen >= self._expiry))
        for id in gone:
            del self._last_seen[id]
        return gone

    def next_expiry(self) -> float | None:
        """When the next one expires if it stays silent; None for never."""
        return None if self._paused or not self._last_seen else min(self._last_seen.values()) + self._expiry

    def pause(self) -> None:
        """There is no connection, so silence means nothing."""
        self._paused = True

    def resume(self, now: float) -> None:
        """There is a connection again: each member has one expiry interval to send."""
        self._paused = False
        self._last_seen = dict.fromkeys(self._last_seen, now)

    @property
    def ids(self) -> tuple[str, ...]:
        """Sorted, so that all members compute the same from it."""
        return tuple(sorted(self._last_seen))

    def __contains__(self, id: str) -> bool:
        return id in self._last_seen

    def __repr__(self) -> str:
        return f"<Members {', '.join(self.ids) or 'none'}{' (paused)' if self._paused else ''}>"


class Membership:
    """This process as a member of its tier, and its view of the others. `pool` is a token. `on_change` is called with
    the sorted ids of all live members, including this one, at the start and at each change. An observer has no `id`."""

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        pool: str,
        tier: str,
        id: str | None,
        on_change: Callable[[tuple[str, ...]], None],
        *,
        expiry: float = EXPIRY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self.pool = pool
        self.tier = tier
        self.id = id
        self._on_change = on_change
        self._clock = clock
        self.malformed = bus.malformed
        self.duplicate_id = DuplicateId(tier, id or "")
        self._members = Members(expiry, bus.limits.max_senders)
        self._wake = asyncio.Event()
        self._newcomer = asyncio.Event()
        self._started = AsyncExitStack()
        self._logged: tuple[str, ...] | None = None
        self._log = structlog.get_logger()

    @property
    def ids(self) -> tuple[str, ...]:
        """All live members, sorted; this one is always among them."""
        others = self._members.ids
        return others if self.id is None else tuple(sorted({*others, self.id}))

    async def start(self) -> None:
        subscription = await self._bus.subscribe(self._subjects.members(self.pool, self.tier), self._receive)
        self._started.push_async_callback(subscription.unsubscribe)
        self._members.pause()
        tasks = [asyncio.create_task(self._expire(), name=f"members {self.tier}")]
        if self.id is not None:
            publish = partial(self._publish_heartbeat, self.id)
            beats = beat(publish, INTERVAL, self._clock, "members.heartbeat.failed", tier=self.tier)
            tasks.append(asyncio.create_task(beats, name=f"heartbeat {self.tier}"))
            tasks.append(asyncio.create_task(self._greet(publish), name=f"greeting {self.tier}"))
        self._started.push_async_callback(cancel, *tasks)
        self._started.callback(self._bus.on_connect(self._connected))
        self._started.callback(self._bus.on_disconnect(self._members.pause))
        self._notify()

    async def close(self) -> None:
        """Leave, and publish that at once."""
        await self._started.aclose()
        if self.id is not None:
            await self._publish_heartbeat(self.id, leaving=True)

    def _connected(self) -> None:
        self._members.resume(self._clock())
        self._wake.set()

    def _receive(self, message: Msg) -> None:
        member = decode_verified(Member, message.data, message.subject, self.malformed, lambda member: member.id)
        if member is None:
            return
        if member.id == self.id:
            self.duplicate_id.observe(self._clock(), leaving=member.leaving)
        elif self._members.observe(member, self._clock()):
            self._wake.set()
            if not member.leaving:
                self._newcomer.set()

    def duplicate_id_problem(self) -> str | None:
        """Why the id isn't unique: another member has it too. None if it is."""
        return self.duplicate_id.problem(self._clock())

    def _notify(self) -> None:
        ids = self.ids
        if ids != self._logged:
            self._logged = ids
            self._log.info(
                "members.changed", tier=self.tier, count=len(ids), members=[id[:SHOWN] for id in ids[:NAMED]]
            )
            self._on_change(ids)

    async def _expire(self) -> None:
        while True:
            due = self._members.next_expiry()
            await set_within(self._wake, None if due is None else due - self._clock())
            self._wake.clear()  # only now: somebody may have come or left during `GATHER`
            try:
                self._members.expire(self._clock())
                self._notify()
            except Exception:  # noqa: BLE001 - the top of the task: a mistake of the listener must not end it
                self._log.exception("members.change.failed", tier=self.tier)
            await asyncio.sleep(GATHER)

    async def _greet(self, publish: Callable[[], Awaitable[None]]) -> None:
        """Send a heartbeat at once when another member comes: until it hears this one, it takes this one's share."""
        while True:
            await self._newcomer.wait()
            self._newcomer.clear()
            try:
                await publish()
            except Exception:  # noqa: BLE001 - the next heartbeat is due soon
                self._log.exception("members.heartbeat.failed", tier=self.tier)
            await asyncio.sleep(INTERVAL)  # however many come, heartbeats at most double

    async def _publish_heartbeat(self, id: str, *, leaving: bool = False) -> None:
        member = Member(id=id, tier=self.tier, sent=self._clock(), leaving=leaving)
        await self._bus.publish(self._subjects.member(self.pool, self.tier, id), encode(member))

    def __repr__(self) -> str:
        return f"<Membership {self.id!r} of {self.tier!r}, live: {', '.join(self.ids) or 'none'}>"
