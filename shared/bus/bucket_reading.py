"""Reads from the bucket's messages what the owner has to know, within a memory limit. No I/O."""

from collections.abc import Callable

from shared.bus import jetstream
from shared.bus.bucket_reconciler import BucketReconciler
from shared.bus.codec import decode
from shared.bus.errors import Malformed
from shared.bus.facts import EPOCH_HEADER, FACT_BYTES
from shared.bus.messages import FactEnvelope
from shared.bus.stray_messages import Stray, is_nameable
from shared.bus.subjects import EPOCH, SYNCED, Subjects


class BucketReading:
    """Takes the messages of one reading. What the owner doesn't know takes `memory` bytes at most: kept content beyond
    it counts as foreign, and other keys beyond it are found once those that were read are deleted.

    `plausible` says whether an epoch can be one; `fence` is the sequence of the owner's own `epoch`.
    """

    def __init__(
        self,
        reconciler: BucketReconciler,
        subjects: Subjects,
        *,
        fence: int,
        memory: int,
        plausible: Callable[[int], bool],
    ) -> None:
        self._reconciler = reconciler
        self._start = len(subjects.fact(""))
        self._fence = fence
        self._room_kept = self._room_others = self._room_strays = self._room_deleted = memory
        self._plausible = plausible
        self.found: list[tuple[str, bytes | None]] = []
        """For `BucketReconciler.observe`."""
        self.foreign: list[str] = []
        """Keys that the owner doesn't know."""
        self.deleted: set[str] = set()
        """Keys of markers of deletes."""
        self.strays: list[Stray] = []
        """Messages under keys that can't be named."""
        self.fenced = False
        """The owner's `epoch` is among what was read: the replica that was read isn't behind it."""

    @property
    def partial(self) -> bool:
        """There are more keys than were taken."""
        return self._room_others < 0

    @property
    def more_strays(self) -> bool:
        """There are more of them than were taken."""
        return self._room_strays < 0

    def read(self, message: jetstream.Stored) -> None:
        key = message.subject[self._start :]
        self.fenced = self.fenced or (key == EPOCH and message.sequence == self._fence)
        if not is_nameable(message.subject, key):
            self._room_strays -= FACT_BYTES + len(key)
            if not self.more_strays:
                self.strays.append(Stray(message.sequence, message.subject))
            return
        if message.headers.get(jetstream.OPERATION) and EPOCH_HEADER in message.headers:
            self._room_deleted -= FACT_BYTES + len(key)
            if self._room_deleted >= 0:
                self.deleted.add(key)
            return
        content = self._content(key, message.data)
        raw = None if content is None else self._reconciler.recognize(key, content)
        if raw is not None and raw is content:  # not held before
            self._room_kept -= FACT_BYTES + len(key) + len(raw)
            raw = raw if self._room_kept >= 0 else None
        if raw is None:
            self._room_others -= FACT_BYTES + len(key)
            if self.partial:
                return
            if not self._reconciler.knows(key):
                self.foreign.append(key)
                return
        self.found.append((key, raw))

    def _content(self, key: str, data: bytes) -> bytes | None:
        """The encoded fact or the `synced` under a key; None where it is neither."""
        if key.endswith(f".{SYNCED}"):
            return data
        try:
            envelope = decode(FactEnvelope, data)
        except Malformed:
            return None
        return bytes(envelope.fact) if self._plausible(envelope.epoch) else None

    def __repr__(self) -> str:
        partial = ", partial" if self.partial else ""
        return f"<BucketReading {len(self.found)} known and {len(self.foreign)} foreign keys{partial}>"
