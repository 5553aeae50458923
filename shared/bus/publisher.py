"""The owner's side of the endpoints bucket: `Ledger` driven by the bus.

Whoever leads writes the key `epoch` and fences every other write with its revision, so that a leader that was replaced
can't store anything any more. Each time the publisher (re)establishes itself, it writes that key anew: what was still
on its way from before, in the buffers of a stalled connection, is refused as well and can't overtake newer facts.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NoReturn

import structlog

from shared.bus import jetstream
from shared.bus.codec import MalformedLog, decode, encode
from shared.bus.connection import Bus
from shared.bus.epochs import believed
from shared.bus.errors import BusError, LostLeadership, Malformed, NoRoom, WrongLastSequence
from shared.bus.ledger import Change, Ledger
from shared.bus.messages import Epoch, FactEnvelope
from shared.bus.replica_state import EPOCH_HEADER, SEQUENCE_HEADER, Delete, Upsert
from shared.bus.subjects import EPOCH, SYNCED, Subjects, synced_key
from shared.model import Fact

_EPOCH_ATTEMPTS = 5
_NOWHERE = -1
"""Instead of a sequence: the bucket has to be read, for a pool that is no more has left its `synced` there."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
LONGEST_SUBJECT = 3000
"""Bytes of a subject to which a delete is published. No fact has a longer one; somebody else's message may, up to what
the server takes in a line, which a delete with its reply subject would be beyond: the server would hang up."""
_NO_TEXT = "\ufffd"
"""In a key: what isn't UTF-8."""
_NAMED = 3
"""Keys that a message names at most."""


def next_epoch(unix_seconds: float, highest_seen: int) -> int:
    """The epoch of a new leader: the clock's milliseconds, and in any case more than was seen before."""
    return max(int(unix_seconds * 1000), highest_seen + 1)


class FactPublisher:
    """Keeps the endpoints bucket equal to the facts of the last `update`, as its one owner.

    `owner` is this process's identity, new at each start. `is_leader` is asked before each burst and each serial write
    (a lease's `held`); `age` gives the seconds since the source of a pool's facts last confirmed them. Seconds:
    `ack_timeout` after which an acknowledgement makes everything be published again, `synced_interval` between two
    repetitions of `synced`, `check_interval` between two comparisons with what the bucket really holds, `marker_ttl`
    that a delete stays visible. `window`: writes on their way at a time, where the bucket has one replica; with more of
    them it is one.
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
        timeout: float = jetstream.API_TIMEOUT,
        is_leader: Callable[[], bool] = lambda: True,
        age: Callable[[str], float] = lambda _pool: 0.0,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        malformed: MalformedLog | None = None,
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
        )
        self._ack_timeout = ack_timeout
        self._synced_interval = synced_interval
        self._check_interval = check_interval
        self._marker_ttl = str(marker_ttl)
        self._window = window
        self._timeout = timeout
        self._is_leader = is_leader
        self._age = age
        self._wall = wall
        self._clock = clock
        self.malformed = malformed or MalformedLog(clock)
        self._log = structlog.get_logger()

        self._ledger = Ledger()
        self._leads = False
        """The epoch in the bucket is, or may be, this run's."""
        self._fence = 0
        self._replicas = replicas
        self._established = False
        self._check_at = 0.0
        self._found_at = float("-inf")
        """When the bucket was read last."""
        self._base = 0
        """The bucket's last sequence when it was looked at last."""
        self._stored_since = 0
        """Messages that were stored for us since then."""
        self._marked_until = 0.0
        """Until then there are markers of deletes in the bucket, and its messages aren't as many as its keys."""
        self._wake = asyncio.Event()
        self._published = asyncio.Event()
        self._failure = ""

        self.establishments = 0
        """Times that the bucket was made sure of and all facts were published."""
        self.written = 0
        self.deleted = 0
        self.failures = 0
        self.repaired = 0
        """Keys that somebody else had changed."""

    def update(self, facts: Mapping[str, Fact], pools: Collection[str], kept: Collection[str] = ()) -> None:
        """Set everything that shall be in the bucket: facts by key (`fact_key`), and the tokens of all pools.

        A pool without facts is complete and empty. What is `kept`, further pools by token and single facts by key, this
        owner doesn't know, so it stays as it is found there; such a pool gets older. Only differences are written,
        soon, while `run` runs. Raises ValueError for a key that is no fact's or lies in none of the pools; nothing has
        changed then.
        """
        before = self._ledger.pools
        self._ledger.want(facts, pools, kept)
        if not set(before) <= set(self._ledger.pools):
            self._look_from(_NOWHERE)
        self._published.clear()
        self._wake.set()

    def apply(self, events: Sequence[Upsert | Delete]) -> None:
        """Change single facts of what `update` has set. Raises ValueError as `update` does."""
        self._ledger.apply(events)
        self._published.clear()
        self._wake.set()

    async def wait_published(self, timeout: float | None = None) -> None:
        """Wait until everything of the last `update` is in the bucket, `synced` included. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            await self._published.wait()

    @property
    def published(self) -> bool:
        """Everything of the last `update` is in the bucket."""
        return self._published.is_set()

    @property
    def epoch(self) -> int:
        return self._ledger.epoch

    def readiness(self) -> str | None:
        """None when everything is published, otherwise what is missing."""
        if self._published.is_set():
            return None
        if not self._ledger.filled:
            return "no facts to publish yet"
        return self._bus.readiness() or self._failure or "facts are being published"

    async def run(self) -> NoReturn:
        """Lead: publish until cancelled. Raises LostLeadership when another owner has taken over.

        Begins with the first `update`: an owner that doesn't know the facts yet must not clear the bucket.
        """
        self._leads = False
        self._established = False
        self._failure = ""
        unhook = self._bus.on_connect(self._connected)
        pause = _FIRST_PAUSE
        try:
            while True:
                self._wake.clear()
                if not self._ledger.filled or not self._bus.connected:
                    await self._wake.wait()
                    continue
                try:
                    if not self._established:
                        self._established = True
                        await self._establish()
                    elif self._clock() >= self._check_at:
                        await self._check()
                    await self._publish()
                except LostLeadership:
                    raise
                except BusError as error:
                    if isinstance(error, NoRoom):
                        await self._make_room()
                    self._fail(error)
                    await self._sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                else:
                    pause = _FIRST_PAUSE
                    if self._established:
                        await self._sleep(self._synced_interval)
        finally:
            unhook()
            self._leads = False
            self._published.clear()

    def _connected(self) -> None:
        self._established = False
        self._wake.set()

    def _fail(self, error: BusError) -> None:
        self._established = False
        self._published.clear()
        self.failures += 1
        reason = str(error)
        if isinstance(error, NoRoom):
            missing = [change.key for change in self._ledger.changes()]
            few = ", ".join(missing[:_NAMED]) + (", …" if len(missing) > _NAMED else "")
            reason = f"JetStream has no room: {reason}; {len(missing)} facts wait to be written{few and ': '}{few}"
        if reason != self._failure:
            self._log.warning("facts.publish.failed", bucket=self._bucket.name, reason=reason)
        self._failure = reason

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    # Taking the bucket

    async def _establish(self) -> None:
        """Make sure of the bucket and of the fence; then find out what has to be written.

        At the start of a term that is what differs; later everything, for what happened meanwhile isn't known.
        """
        self._replicas = (await jetstream.ensure_bucket(self._bus, self._bucket, timeout=self._timeout)).replicas
        for _ in range(_EPOCH_ATTEMPTS):
            first = await self._take_epoch()
            if first is not None:
                break
        else:
            raise BusError(f"the epoch of bucket {self._bucket.name!r} changes all the time")
        self._look_from((await self._extent()).last_sequence)
        self._adopt(await self._read(), trust=first)
        self._check_at = self._clock() + self._check_interval
        self.establishments += 1
        self._log.info(
            "facts.established",
            bucket=self._bucket.name,
            epoch=self._ledger.epoch,
            changes=len(self._ledger.changes()),
        )

    async def _take_epoch(self) -> bool | None:
        """Write the epoch anew. Returns whether the term begins with it, or None when somebody else was quicker."""
        self._require_leadership()
        subject = self._subjects.fact(EPOCH)
        found = await jetstream.last(self._bus, self._bucket.name, subject, timeout=self._timeout)
        seen = Epoch(epoch=0, owner="")
        if found is not None:
            try:
                seen = decode(Epoch, found.data)
            except Malformed as error:
                self._log.warning("facts.epoch.malformed", bucket=self._bucket.name, reason=str(error))
            if self._believed(seen.epoch) < 0:
                reason = f"epoch {seen.epoch} can't be the time at which it took over; it is written over"
                self.malformed.implausible.report(seen.owner, reason, subject=subject)
                seen = Epoch(epoch=0, owner=seen.owner)
        ours = self._leads and seen == Epoch(epoch=self._ledger.epoch, owner=self.owner)
        if self._leads and not ours and seen.epoch > self._ledger.epoch:
            raise LostLeadership(f"{seen.owner!r} owns bucket {self._bucket.name!r} since epoch {seen.epoch}")
        first = not self._leads
        if not ours:
            self._ledger.lead(next_epoch(self._wall(), max(seen.epoch, self._believed(self._ledger.epoch))))
            self._leads = True
        try:
            self._fence = await jetstream.put(
                self._bus,
                subject,
                encode(Epoch(epoch=self._ledger.epoch, owner=self.owner)),
                headers={jetstream.EXPECTED_SEQUENCE: str(0 if found is None else found.sequence)},
                timeout=self._timeout,
            )
        except WrongLastSequence:
            if first:
                self._leads = False
            return None
        return first

    async def _make_room(self) -> None:
        """Remove what isn't wanted: a full store takes no deletes, for each of them is a message. Readers find it out
        by the next `synced`. Of what a later owner has written, nothing is removed."""
        try:
            before = (await self._extent()).last_sequence + 1
            if self._clock() - self._found_at >= self._check_interval:
                self._adopt(await self._read(fenced=False), trust=False)
            for key in self._ledger.unwanted():
                self._require_leadership()
                subject = self._subjects.fact(key)
                await jetstream.purge(self._bus, self._bucket.name, subject, before=before, timeout=self._timeout)
                self.deleted += 1
        except LostLeadership:
            raise
        except BusError as error:
            self._log.warning("facts.room.failed", bucket=self._bucket.name, reason=str(error))

    async def _read(self, *, fenced: bool = True) -> list[tuple[str, bytes | None]]:
        """What the bucket holds; unless it is not `fenced`, at least up to the present fence."""
        everything = self._subjects.fact(">")
        found: list[tuple[str, bytes | None]] = []
        complete = not fenced
        start = len(self._subjects.fact(""))
        kept = self._ledger.kept

        def read(message: jetstream.Stored) -> None:
            nonlocal complete
            key = message.subject[start:]
            complete = complete or (key == EPOCH and message.sequence == self._fence)
            if message.headers.get(jetstream.OPERATION) and EPOCH_HEADER in message.headers:
                return
            if _NO_TEXT in key:
                return  # it can't be named, so not be deleted; no reader takes it
            found.append((key, self._content(key, message.data) if self._ledger.concerns(key) else None))

        await jetstream.snapshot(self._bus, self._bucket.name, everything, read=read, timeout=self._timeout)
        if self._ledger.kept != kept:
            raise BusError("what is left as it is has changed while the bucket was read")  # its content is missing
        if not complete:
            raise BusError(f"bucket {self._bucket.name!r} was read from a replica that is behind")
        return found

    def _content(self, key: str, data: bytes) -> bytes | None:
        """The encoded fact or the `synced` under a key; None where it is neither."""
        if key.endswith(f".{SYNCED}"):
            return data
        try:
            envelope = decode(FactEnvelope, data)
        except Malformed:
            return None
        return bytes(envelope.fact) if self._believed(envelope.epoch) >= 0 else None

    def _believed(self, epoch: int) -> int:
        return believed(epoch, self._wall())

    async def _check(self) -> None:
        """Compare with what the bucket really holds: anybody may write to it by hand, unfenced. It is read only where
        somebody else has written, or something is missing; in thousands of facts that costs a quarter of a second."""
        now = self._clock()
        self._check_at = now + self._check_interval
        found = await self._extent()
        ours = found.last_sequence - self._base == self._stored_since
        self._look_from(found.last_sequence)
        if ours and found.messages >= self._ledger.keys and now > self._marked_until:
            return
        repaired = self._adopt(await self._read(), trust=True)
        if repaired:
            self.repaired += repaired
            self._published.clear()
            self._log.warning("facts.repaired", bucket=self._bucket.name, keys=repaired)

    def _adopt(self, found: list[tuple[str, bytes | None]], *, trust: bool) -> int:
        self._found_at = self._clock()
        return self._ledger.adopt(found, trust=trust)

    def _age_of(self, pool: str) -> float:
        """Seconds since a pool's facts were confirmed, at least."""
        found = self._ledger.found_age(pool)
        return self._age(pool) if found is None else found + self._clock() - self._found_at

    async def _extent(self) -> jetstream.Extent:
        return await jetstream.extent(self._bus, self._bucket.name, timeout=self._timeout)

    def _look_from(self, sequence: int) -> None:
        self._base, self._stored_since = sequence, 0

    # Writing

    async def _publish(self) -> None:
        """Write what differs, then each pool's `synced`."""
        self._require_leadership()
        while changes := self._ledger.changes():
            width = self._window if self._replicas == 1 else 1
            for start in range(0, len(changes), width):
                await self._write(changes[start : start + width])
        for pool in self._ledger.complete:
            await self._fenced_put(synced_key(pool), encode(self._ledger.synced(pool, self._age_of(pool))), {})
        if not self._ledger.changes():
            self._failure = ""
            self._published.set()

    async def _write(self, changes: Sequence[Change]) -> None:
        self._require_leadership()
        results = await asyncio.gather(*map(self._write_one, changes), return_exceptions=True)
        failed: BaseException | None = None
        for change, result in zip(changes, results, strict=True):
            if result is None:
                self._ledger.done(change)
                if change.raw is None:
                    self.deleted += 1
                else:
                    self.written += 1
                continue
            self._ledger.doubt(change)
            if failed is None or not isinstance(failed, WrongLastSequence):
                failed = result
        if failed is not None:
            raise failed

    async def _write_one(self, change: Change) -> None:
        if change.raw is not None:
            await self._fenced_put(change.key, self._ledger.envelope(change.raw), {})
            return
        if len(subject := self._subjects.fact(change.key)) > LONGEST_SUBJECT:
            last = (await self._extent()).last_sequence
            await jetstream.purge(self._bus, self._bucket.name, subject, before=last + 1, timeout=self._timeout)
            return
        self._marked_until = self._clock() + float(self._marker_ttl)
        await self._fenced_put(
            change.key,
            b"",
            {
                jetstream.OPERATION: "PURGE",
                "Nats-Rollup": "sub",
                "Nats-TTL": self._marker_ttl,
                EPOCH_HEADER: str(self._ledger.epoch),
                SEQUENCE_HEADER: str(self._ledger.next_sequence()),
            },
        )

    async def _fenced_put(self, key: str, payload: bytes, headers: dict[str, str]) -> None:
        headers[jetstream.EXPECTED_SEQUENCE] = str(self._fence)
        headers[jetstream.EXPECTED_SUBJECT] = self._subjects.fact(EPOCH)
        await jetstream.put(self._bus, self._subjects.fact(key), payload, headers=headers, timeout=self._ack_timeout)
        self._stored_since += 1

    def _require_leadership(self) -> None:
        if not self._is_leader():
            raise LostLeadership(f"{self.owner!r} doesn't hold the lease any more")

    def __repr__(self) -> str:
        state = "published" if self.published else f"not published ({self.readiness()})"
        return (
            f"<FactPublisher {self.owner!r} {state}, establishments={self.establishments} written={self.written} "
            f"deleted={self.deleted} failures={self.failures} {self._ledger!r}>"
        )
