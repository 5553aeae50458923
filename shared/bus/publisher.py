"""The owner of the endpoints bucket: drives `BucketReconciler`.

The leader writes the key `epoch` and fences every other write with its revision, so that a replaced leader can't store
anything. At each (re)connection, the publisher writes that key again. Older writes in the buffers of a stalled
connection are thus refused too.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NoReturn

import structlog

from shared.bus import jetstream
from shared.bus.bucket_reading import BucketReading
from shared.bus.bucket_reconciler import BucketReconciler, Change
from shared.bus.codec import encode
from shared.bus.connection import Bus
from shared.bus.epochs import plausible_epoch
from shared.bus.errors import BusError, LostLeadership, NoRoom, WrongLastSequence
from shared.bus.facts import EPOCH_HEADER, KEY_HEADER, SEQUENCE_HEADER, Delete, Upsert
from shared.bus.fence import Fence
from shared.bus.stray_messages import StrayMessages
from shared.bus.subjects import Subjects, synced_key
from shared.model import Fact
from shared.tasks import set_within

_NOWHERE = -1
"""Instead of a sequence: the bucket has to be read, because a removed pool has left its `synced` there."""
_NAMED = 3
"""Keys that a message names at most."""


class FactPublisher:
    """Keeps the endpoints bucket equal to the facts of the last `update`.

    `owner` identifies this run of the process. `is_leader` is called before each batch. `age` gives the seconds
    since the source of a pool's facts last confirmed them. In seconds: `ack_timeout` of a write; `synced_interval`
    between two repetitions of `synced`, and after a failure; `check_interval` between two comparisons with the bucket;
    `marker_ttl` during which a delete stays visible. `window` writes are in flight at once if the bucket has one
    replica, otherwise one.
    """

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        owner: str,
        *,
        replicas: int = 1,
        ack_timeout: float = 0.5,
        synced_interval: float = 0.5,
        check_interval: float = 10.0,
        marker_ttl: int = 60,
        window: int = 128,
        is_leader: Callable[[], bool] = lambda: True,
        age: Callable[[str], float] = lambda _pool: 0.0,
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self.owner = owner
        self._bucket = jetstream.Bucket(
            name=subjects.endpoints_bucket,
            storage="file",
            replicas=replicas,
            republish=subjects.republished(">"),
            message_ttl=True,
            deletable=None,
        )
        self._strays = StrayMessages(bus, self._bucket.name, window)
        self._ack_timeout = ack_timeout
        self._synced_interval = synced_interval
        self._check_interval = check_interval
        self._marker_ttl = str(marker_ttl)
        self._window = window
        self._is_leader = is_leader
        self._age = age
        self._log = structlog.get_logger()

        self._reconciler = BucketReconciler()
        self._fence = Fence(bus, subjects, owner, self._reconciler)
        self._replicas = replicas
        self._established = False
        self._check_at = 0.0
        self._synced_at = float("-inf")
        """When `synced` was written last."""
        self._found_at = float("-inf")
        """When the bucket was read last."""
        self._last_sequence = 0
        """The bucket's, as long as nobody else writes to it."""
        self._partly_read = False
        """There is more in the bucket than was read of it."""
        self._marked_until = 0.0
        """Until then there are markers of deletes in the bucket, and its messages aren't as many as its keys."""
        self._wake = asyncio.Event()
        self._published = False
        self._failure = ""

        self.establishments = 0
        """How often the bucket was ensured and all facts were published."""
        self.written = 0
        self.deleted = 0
        self.failures = 0
        self.repaired = 0
        """Keys that somebody else had changed."""

    def update(self, facts: Mapping[str, Fact], pools: Collection[str], kept: Collection[str] = ()) -> None:
        """Set the desired content: facts by key (`fact_key`), and the tokens of all pools; a pool without facts is
        complete and empty. `kept` are further pools by token and single facts by key that this owner doesn't know: they
        stay as they are, and such a pool ages. `run` writes the differences. Raises ValueError, without any change, for
        a key that isn't a fact's or lies in none of the pools."""
        before = self._reconciler.pools
        self._reconciler.set_desired(facts, pools, kept)
        if not set(before) <= set(self._reconciler.pools):
            self._last_sequence = _NOWHERE
        self._published = False
        self._wake.set()

    def apply(self, events: Sequence[Upsert | Delete]) -> None:
        """Change single facts of what `update` has set. Raises ValueError as `update` does."""
        self._reconciler.apply(events)
        self._published = False
        self._wake.set()

    @property
    def published(self) -> bool:
        """Everything of the last `update` is in the bucket, `synced` included."""
        return self._published

    @property
    def epoch(self) -> int:
        return self._reconciler.epoch

    def readiness(self) -> str | None:
        """None when everything is published, otherwise what is missing."""
        if self._published:
            return None
        if not self._reconciler.has_desired:
            return "no facts to publish yet"
        return self._bus.readiness() or self._failure or "facts are being published"

    async def run(self) -> NoReturn:
        """Publish until cancelled, from the first `update` on. Raises LostLeadership when another owner takes over."""
        self._fence.release()
        self._established = False
        self._failure = ""
        unhook = self._bus.on_connect(self._connected)
        try:
            while True:
                self._wake.clear()
                if not self._reconciler.has_desired or not self._bus.connected:
                    await self._wake.wait()
                    continue
                try:
                    if not self._established:
                        self._established = True
                        await self._establish()
                    elif time.monotonic() >= self._check_at:
                        await self._check()
                    await self._publish()
                except LostLeadership:
                    raise
                except BusError as error:
                    if isinstance(error, NoRoom):
                        await self._make_room()
                    self._fail(error)
                await self._pause()
        finally:
            unhook()
            self._fence.release()
            self._published = False

    async def _pause(self) -> None:
        """Wait for something to do, and meanwhile remove what can't be named: nobody waits for that."""
        until = time.monotonic() + self._synced_interval
        self.deleted += await self._strays.remove(self._wake, until)
        if self._strays.more:
            self._check_at = 0.0
        await set_within(self._wake, until - time.monotonic())

    def _connected(self) -> None:
        self._established = False
        self._wake.set()

    def _fail(self, error: BusError) -> None:
        self._established = False
        self._published = False
        self.failures += 1
        reason = str(error)
        if isinstance(error, NoRoom):
            missing, due = [change.key for change in self._reconciler.changes(_NAMED)], self._reconciler.due
            few = ", ".join(missing) + (", …" if due > len(missing) else "")
            reason = f"JetStream has no room: {reason}; {due} facts wait to be written{few and ': '}{few}"
        if reason != self._failure:
            self._log.warning("facts.publish.failed", bucket=self._bucket.name, reason=reason)
        self._failure = reason

    # Taking the bucket

    async def _establish(self) -> None:
        """Ensure the bucket and the fence, and find out what to write: at the start of a term the differences, later
        everything, because nobody knows what happened meanwhile."""
        self._replicas = (await jetstream.ensure_bucket(self._bus, self._bucket)).replicas
        first = await self._fence.take(self._require_leadership)
        self._last_sequence = (await jetstream.extent(self._bus, self._bucket.name)).last_sequence
        self._adopt(await self._read(known=not first), trust=first)
        self._synced_at = time.monotonic()
        self._check_at = self._synced_at + self._check_interval
        self.establishments += 1
        self._log.info(
            "facts.established",
            bucket=self._bucket.name,
            epoch=self._reconciler.epoch,
            changes=self._reconciler.due,
        )

    async def _make_room(self) -> None:
        """Purge undesired keys and markers of deletes: a full store accepts no deletes, because each is a message.
        Readers notice at the next `synced`. What a later owner has written stays."""
        markers: set[str] = set()
        try:
            before = (await jetstream.extent(self._bus, self._bucket.name)).last_sequence + 1
            if time.monotonic() - self._found_at >= self._check_interval:
                self._adopt(reading := await self._read(writes=False))
                markers = reading.deleted
            for key in [*self._reconciler.orphans(), *markers]:
                self._require_leadership()
                subject = self._subjects.fact(key)
                await jetstream.purge(self._bus, self._bucket.name, subject, before=before)
                self.deleted += key not in markers
        except LostLeadership:
            raise
        except BusError as error:
            self._log.warning("facts.room.failed", bucket=self._bucket.name, reason=str(error))

    async def _read(self, *, known: bool = True, writes: bool = True) -> BucketReading:
        """What the bucket holds, at least up to the present fence. Others may have filled it: between pages, news
        is written. `known` as in `BucketReconciler.begin_reading`. Not `writes`: the store is full, and any replica
        will do."""
        reading = BucketReading(
            self._reconciler,
            self._subjects,
            fence=self._fence.sequence,
            memory=self._bus.limits.max_fact_memory,
            plausible=lambda epoch: plausible_epoch(epoch, time.time()) >= 0,
        )
        kept, everything = self._reconciler.kept, self._subjects.fact(">")
        self._reconciler.begin_reading(known=known)

        async def between() -> None:
            if await self._publish_fresh() and known:
                await self._write_synced()
            elif known and self._reconciler.settled:
                await self._repeat_synced()

        await jetstream.snapshot(
            self._bus, self._bucket.name, everything, read=reading.read, between=between if writes else None
        )
        if self._reconciler.kept != kept:
            raise BusError(
                "keys that were to stay unchanged have changed while the bucket was read"
            )  # content is missing
        if writes and not reading.fenced:
            raise BusError(f"bucket {self._bucket.name!r} was read from a replica that is behind")
        self._partly_read = reading.partial
        self._strays.found(reading.strays, more=reading.more_strays)
        return reading

    async def _check(self) -> None:
        """Compare with the bucket, to which anybody may write. It is read only if somebody else has written or a
        message is missing: reading thousands of facts takes a quarter of a second."""
        now = time.monotonic()
        self._check_at = now + self._check_interval
        found = await jetstream.extent(self._bus, self._bucket.name)
        ours, self._last_sequence = found.last_sequence == self._last_sequence, found.last_sequence
        more = self._partly_read or self._strays.more
        if ours and found.messages >= self._reconciler.keys and now > self._marked_until and not more:
            return
        repaired = self._adopt(await self._read(), trust=True)
        if repaired:
            self.repaired += repaired
            self._published = False
            self._log.warning("facts.repaired", bucket=self._bucket.name, keys=repaired)

    def _adopt(self, reading: BucketReading, *, trust: bool = False) -> int:
        self._found_at = time.monotonic()
        return self._reconciler.observe(reading.found, reading.foreign, trust=trust)

    def _age_of(self, pool: str) -> float:
        """Seconds since a pool's facts were confirmed, at least."""
        found = self._reconciler.found_age(pool)
        return self._age(pool) if found is None else found + time.monotonic() - self._found_at

    # Writing

    @property
    def _batch(self) -> int:
        """Writes in flight at once."""
        return self._window if self._replicas == 1 else 1

    async def _publish(self) -> None:
        """Write what differs, then each pool's `synced`, which doesn't wait for deletes of many foreign keys."""
        self._require_leadership()
        while changes := self._reconciler.changes(self._batch):
            await self._write(changes)
            if self._reconciler.settled:
                await self._repeat_synced()
        if self._partly_read:
            self._check_at = 0.0
            return
        await self._write_synced()
        if not self._reconciler.changes(1):
            self._failure = ""
            self._published = True

    async def _publish_fresh(self) -> bool:
        """Write what has changed while the bucket is read; returns whether anything has."""
        self._require_leadership()
        found = False
        while changes := self._reconciler.fresh_changes(self._batch):
            await self._write(changes)
            found = True
        return found

    async def _repeat_synced(self) -> None:
        """Write each pool's `synced` if that is due."""
        if time.monotonic() - self._synced_at >= self._synced_interval:
            await self._write_synced()

    async def _write_synced(self) -> None:
        self._synced_at = time.monotonic()
        for pool in self._reconciler.complete:
            await self._fenced_put(synced_key(pool), encode(self._reconciler.synced(pool, self._age_of(pool))), {})

    async def _write(self, changes: Sequence[Change]) -> None:
        self._require_leadership()
        results = await asyncio.gather(*map(self._write_one, changes), return_exceptions=True)
        failed: BaseException | None = None
        for change, result in zip(changes, results, strict=True):
            if result is None:
                self._reconciler.acknowledge(change)
                if change.raw is None:
                    self.deleted += 1
                else:
                    self.written += 1
                continue
            self._reconciler.mark_unknown(change)
            if failed is None or not isinstance(failed, WrongLastSequence):
                failed = result
        if failed is not None:
            raise failed

    async def _write_one(self, change: Change) -> None:
        if change.raw is not None:
            await self._fenced_put(change.key, self._reconciler.envelope(change.raw), {})
            return
        self._marked_until = time.monotonic() + float(self._marker_ttl)
        await self._fenced_put(
            change.key,
            b"",
            {
                jetstream.OPERATION: "PURGE",
                "Nats-Rollup": "sub",
                "Nats-TTL": self._marker_ttl,
                EPOCH_HEADER: str(self._reconciler.epoch),
                SEQUENCE_HEADER: str(self._reconciler.next_sequence()),
                KEY_HEADER: change.key,
            },
        )

    async def _fenced_put(self, key: str, payload: bytes, headers: dict[str, str]) -> None:
        headers |= self._fence.headers
        await jetstream.put(self._bus, self._subjects.fact(key), payload, headers=headers, timeout=self._ack_timeout)
        self._last_sequence += 1

    def _require_leadership(self) -> None:
        if not self._is_leader():
            raise LostLeadership(f"{self.owner!r} doesn't hold the lease any more")

    def __repr__(self) -> str:
        state = "published" if self.published else f"not published ({self.readiness()})"
        return (
            f"<FactPublisher {self.owner!r} {state}, establishments={self.establishments} written={self.written} "
            f"deleted={self.deleted} failures={self.failures} {self._reconciler!r}>"
        )
