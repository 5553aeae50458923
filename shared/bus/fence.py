"""The fence of the endpoints bucket: the key `epoch`, which the leader writes. Every other write names its revision. So
a replaced leader can't store anything."""

import time
from collections.abc import Callable, Mapping

import structlog

from shared.bus import jetstream
from shared.bus.bucket_reconciler import BucketReconciler
from shared.bus.codec import SHOWN, decode, encode
from shared.bus.connection import Bus
from shared.bus.epochs import next_epoch, plausible_epoch
from shared.bus.errors import BusError, LostLeadership, Malformed, RequestTimeout, WrongLastSequence
from shared.bus.messages import Epoch
from shared.bus.subjects import EPOCH, Subjects

ATTEMPTS = 5


class Fence:
    """An owner's fence. `take` it at the start of a term, and again at each connection; `release` it at the end."""

    def __init__(self, bus: Bus, subjects: Subjects, owner: str, reconciler: BucketReconciler) -> None:
        self._bus = bus
        self._bucket = subjects.endpoints_bucket
        self._subject = subjects.fact(EPOCH)
        self._owner = owner
        self._reconciler = reconciler
        self._taken = False
        """The epoch in the bucket is, or may be, this term's."""
        self.sequence = 0
        """Of the key `epoch`, as this owner wrote it."""
        self._log = structlog.get_logger()

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of a write that NATS refuses once another owner has taken over."""
        return {jetstream.EXPECTED_SEQUENCE: str(self.sequence), jetstream.EXPECTED_SUBJECT: self._subject}

    def release(self) -> None:
        """The term has ended."""
        self._taken = False

    async def take(self, require_leadership: Callable[[], None]) -> bool:
        """Write the epoch again; returns whether the term begins with it. Raises LostLeadership if another owner has
        taken over, and what `require_leadership` raises, which is called before each attempt."""
        for _ in range(ATTEMPTS):
            require_leadership()
            first = await self._try()
            if first is not None:
                return first
        raise BusError(f"the epoch of bucket {self._bucket!r} changes all the time")

    async def _try(self) -> bool | None:
        """None if somebody else was quicker."""
        found = await jetstream.last(self._bus, self._bucket, self._subject)
        seen = Epoch(epoch=0, owner="") if found is None else self._read(found)
        ours = self._taken and seen == Epoch(epoch=self._reconciler.epoch, owner=self._owner)
        if self._taken and not ours and seen.epoch > self._reconciler.epoch:
            raise LostLeadership(f"{seen.owner[:SHOWN]!r} has owned bucket {self._bucket!r} since epoch {seen.epoch}")
        first = not self._taken
        if not ours:
            now = time.time()
            self._reconciler.start_epoch(next_epoch(now, max(seen.epoch, plausible_epoch(self._reconciler.epoch, now))))
            self._taken = True
        try:
            self.sequence = await jetstream.put(
                self._bus,
                self._subject,
                encode(Epoch(epoch=self._reconciler.epoch, owner=self._owner)),
                headers={jetstream.EXPECTED_SEQUENCE: str(0 if found is None else found.sequence)},
                timeout=jetstream.API_TIMEOUT,
            )
        except WrongLastSequence:
            if first:
                self._taken = False
            return None
        except RequestTimeout as error:  # nats-server doesn't acknowledge writes after one has failed
            raise RequestTimeout(
                f"{error}, though reads are answered; if the disk of a NATS server was full, restart that server"
            ) from error
        return first

    def _read(self, found: jetstream.Stored) -> Epoch:
        seen = Epoch(epoch=0, owner="")
        try:
            seen = decode(Epoch, found.data)
        except Malformed as error:
            self._log.warning("facts.epoch.malformed", bucket=self._bucket, reason=str(error))
        if plausible_epoch(seen.epoch, time.time()) < 0:
            reason = f"epoch {seen.epoch} can't be the time at which it took over; it is written over"
            self._bus.malformed.implausible.report(seen.owner, reason, subject=self._subject)
            seen = Epoch(epoch=0, owner=seen.owner)
        return seen

    def __repr__(self) -> str:
        return f"<Fence of {self._bucket!r}: {'taken' if self._taken else 'not taken'}, sequence {self.sequence}>"
