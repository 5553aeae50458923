"""Leader election by a key that its holder renews and that expires otherwise; with and without Kubernetes.

The key is created or nothing happens, and renewed by its own revision, so there is one holder at a time. The holder
stops by its own clock, counted from the sending of its last renewal. A standby counts from when it first saw that
renewal, which is later, and writes over it a little after the holder has stopped. Whichever write comes second is
refused. The bucket's time to live is for a lease without a standby: the server takes up to a quarter of a second
longer, and a key's own would be lost at the first renewal.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from shared.bus import jetstream
from shared.bus.codec import decode, encode
from shared.bus.connection import Bus
from shared.bus.errors import BusError, BusOptionError, Malformed, NotConnected, WrongLastSequence
from shared.bus.messages import Holder
from shared.bus.subjects import Subjects
from shared.bus.subscription import Subscription
from shared.tasks import cancel, set_within

MARGIN = 1.05
"""A standby waits for so many times as long as a holder holds: nobody's clock is five percent faster."""


class LeaseClock:
    """When a lease is held, to be renewed, or to be tried for, in monotonic seconds. A holder counts from the time its
    renewal was sent, a standby from the time it first saw the renewal of another holder."""

    def __init__(self, *, hold: float, renew: float, attempt: float) -> None:
        self._hold = hold
        self._renew = renew
        self._attempt = attempt
        self._sent: float | None = None
        """When the last request that succeeded was sent."""
        self._tried: float | None = None
        self._seen: tuple[int, float] | None = None
        """The revision of another holder, and when it was first seen."""

    def succeeded(self, sent: float) -> None:
        """The lease was acquired or renewed by a request that was sent then."""
        self._sent = sent if self._sent is None else max(sent, self._sent)

    def tried(self, sent: float) -> None:
        self._tried = sent

    def dropped(self) -> None:
        """The lease was lost or given back."""
        self._sent = None

    def saw(self, revision: int, now: float) -> bool:
        """The lease is another holder's, at that revision. Returns whether that holder has stopped."""
        if self._seen is None or self._seen[0] != revision:
            self._seen = revision, now
        return now >= self._seen[1] + self._hold * MARGIN

    def forget(self) -> None:
        """Revisions begin again, or one may have been used twice."""
        self._seen = None

    def held(self, now: float) -> bool:
        return self._sent is not None and now < self._sent + self._hold

    def deadline(self) -> float | None:
        """Until when it is held; None when it isn't."""
        return None if self._sent is None else self._sent + self._hold

    def next_request(self, now: float) -> float:
        """When to renew, after a failure when to try again; for one who doesn't hold it, when to look whether it is
        free."""
        again = now if self._tried is None else self._tried + self._attempt
        if self._sent is not None:
            return max(self._sent + self._renew, again)
        stops = again if self._seen is None else self._seen[1] + self._hold * MARGIN
        return stops if self._tried is not None and self._tried < stops < again else again

    def __repr__(self) -> str:
        return f"<LeaseClock deadline={self.deadline()}>"


class Lease:
    """The lease `name`, for `owner`: a name that no other process has, nor this one after a restart.

    Ask `held` before acting as the leader; wait for `lost` to stop. In seconds: `ttl` until the server expires the
    lease, `hold` until the holder stops by its own clock, `renew` between renewals, `attempt` between looks whether it
    is free. Raises BusOptionError if they leave no margin.
    """

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        name: str,
        owner: str,
        *,
        replicas: int = 1,
        ttl: float = 2.0,
        hold: float = 1.5,
        renew: float = 0.5,
        attempt: float = 0.15,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < attempt <= renew < hold < ttl:
            raise BusOptionError(
                f"lease times must be 0 < attempt <= renew < hold < ttl, not {attempt}, {renew}, {hold}, {ttl}"
            )
        self._bus = bus
        self._subjects = subjects
        self.name = name
        self.owner = owner
        self._bucket = jetstream.Bucket(
            name=subjects.leases_bucket, storage="memory", replicas=replicas, ttl=ttl, deletable=True
        )
        self._key = subjects.lease(name)
        self._clock = clock
        self._times = LeaseClock(hold=hold, renew=renew, attempt=attempt)
        self._timeout = renew
        self._revision = 0
        self._doubtful = True
        """It isn't known whether the bucket is there, or what became of the last request."""
        self._task: asyncio.Task[None] | None = None
        self._released: Subscription | None = None
        self._wake = asyncio.Event()
        self._failure = ""
        self._log = structlog.get_logger()
        self.lost = asyncio.Event()
        """Set when the lease that was held is held no more, for whatever reason."""
        self.acquisitions = 0

    @property
    def held(self) -> bool:
        """Whether this owner holds the lease at this moment, by its own clock."""
        return self._times.held(self._clock())

    async def acquire(self, when: Callable[[], bool] = lambda: True) -> None:
        """Wait until the lease is held; it is then renewed until lost or released. `when` is asked before each
        attempt to get it."""
        await self._stop()
        self._times.dropped()
        self._times.forget()
        self._released = await self._bus.subscribe(self._subjects.lease_released(self.name), lambda _: self._wake.set())
        unhook = self._bus.on_connect(self._connected)
        try:
            while True:
                await self._pause()
                try:
                    if await self._obtain(when):
                        break
                except BusError as error:
                    self._note(error)
        finally:
            unhook()
            await self._released.unsubscribe()
        self.lost.clear()
        self.acquisitions += 1
        self._log.info("lease.acquired", lease=self.name, owner=self.owner)
        self._task = asyncio.create_task(self._keep(), name=f"lease {self.name}")

    async def release(self) -> None:
        """Give the lease back, so that a standby has it at once."""
        was_held = self.held
        await self._stop()
        self._times.dropped()
        self.lost.set()
        if not was_held:
            return
        try:
            await jetstream.remove(self._bus, self._bucket.name, self._revision, timeout=self._timeout)
            await self._bus.publish(self._subjects.lease_released(self.name))
        except BusError as error:
            self._log.info("lease.release.failed", lease=self.name, reason=str(error))  # it expires
        else:
            self._log.info("lease.released", lease=self.name, owner=self.owner)

    async def _stop(self) -> None:
        if self._task is not None:
            task, self._task = self._task, None
            await cancel(task)

    async def _pause(self) -> None:
        """Until the next request is due; a release or a new connection cuts it short, also one during the last
        request."""
        wait = self._times.next_request(self._clock()) - self._clock()
        deadline = self._times.deadline()
        if deadline is not None:
            wait = min(wait, deadline - self._clock())
        await set_within(self._wake, wait)
        self._wake.clear()

    def _connected(self) -> None:
        """NATS may have been wiped meanwhile."""
        self._times.forget()
        self._wake.set()

    async def _renew(self) -> bool:
        """Write the key if it is at the revision that this owner wrote last; otherwise as `_obtain`."""
        self._times.tried(self._clock())
        if not self._doubtful:
            self._doubtful = True
            if await self._write(self._revision):
                self._doubtful = False
                return True
        return await self._obtain(lambda: True, holding=True)

    async def _obtain(self, when: Callable[[], bool], *, holding: bool = False) -> bool:
        """Write the key if it is missing, this owner's, or that of a holder who has stopped. Returns whether the lease
        is held. One who is `holding` it also replaces what names no holder. After a request with an unknown result,
        ensure the bucket: NATS may have been wiped."""
        self._times.tried(self._clock())
        doubtful, self._doubtful = self._doubtful, True
        if doubtful:
            await jetstream.ensure_bucket(self._bus, self._bucket, timeout=self._timeout)
        found = await jetstream.last(self._bus, self._bucket.name, self._key, timeout=self._timeout)
        free = found is None or self._times.saw(found.sequence, self._clock())
        if found is not None and not free:
            holder = self._holder(found.data)
            free = holder == self.owner or (holder is None and holding)
            if holder is None:
                self._log.warning("lease.unreadable", lease=self.name, sequence=found.sequence)
        obtained = free and when() and await self._write(found.sequence if found else 0)
        self._doubtful = False
        return obtained

    def _holder(self, data: bytes) -> str | None:
        """Who holds the lease; None if somebody else has written the key."""
        try:
            return decode(Holder, data).owner
        except Malformed:
            return None

    async def _write(self, revision: int) -> bool:
        sent = self._clock()
        try:
            self._revision = await jetstream.put(
                self._bus,
                self._key,
                encode(Holder(owner=self.owner)),
                headers={jetstream.EXPECTED_SEQUENCE: str(revision)},
                timeout=self._timeout,
            )
        except WrongLastSequence:
            return False
        self._times.succeeded(sent)
        self._failure = ""
        return True

    async def _keep(self) -> None:
        try:
            while True:
                await self._pause()
                now = self._clock()
                deadline = self._times.deadline()
                if deadline is None or now >= deadline:
                    break
                if now < self._times.next_request(now):
                    continue
                try:
                    async with asyncio.timeout(deadline - now):
                        if not await self._renew():
                            break
                except TimeoutError:
                    break
                except BusError as error:
                    self._note(error)
        except Exception:  # noqa: BLE001 - the top of the task: whatever happened, the lease isn't renewed any more
            self._log.exception("lease.renewal.failed", lease=self.name)
        self._times.dropped()
        self._doubtful = True  # the key may still be there, and be this owner's: then it needn't expire first
        self.lost.set()
        self._log.warning("lease.lost", lease=self.name, owner=self.owner)

    def _note(self, error: BusError) -> None:
        reason = str(error)
        if reason != self._failure and not isinstance(error, NotConnected):
            self._log.warning("lease.request.failed", lease=self.name, reason=reason)
        self._failure = reason

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} of {self.owner!r} {'held' if self.held else 'not held'}>"
