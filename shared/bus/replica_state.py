"""The reader of the endpoints bucket as a pure state machine: messages and snapshots in, events out.

A copy is complete when its count and digest agree with the owner's `synced`. Only a complete copy replaces the view. So
there are two copies: the *view* is what the consumer has; the *candidate* is collected from a snapshot and live
messages whenever the view may be incomplete: at the start, after a reconnect, and when `synced` disagrees with it. The
candidate becomes the view as soon as it agrees. Until then, also if the bucket is missing or empty, the view stays and
ages.

`(epoch, sequence)` orders all writes, so messages may be repeated, late or out of order. Epochs are as believed by the
reader (`shared.bus.epochs`).
"""

import math
from collections.abc import Callable

from msgspec import Struct, structs

from shared.bus.codec import MASK
from shared.bus.facts import FACT_BYTES, NEVER, Delete, Entry, Event, Purge, Put, Reset, Upsert, Version
from shared.bus.messages import Synced
from shared.limits import LIMITS, BusLimits
from shared.model import Fact


class _Copy:
    """Facts by key with versions, count and digest. Takes about `memory` bytes, and ignores further facts."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self.full = False
        """A fact was ignored because there was no room for it."""
        self.entries: dict[str, Put] = {}
        self.removed: dict[str, Version] = {}
        self.digest = 0
        self._weight = self._weight_removed = 0
        """Of `entries` and of `removed`."""
        self.complete_at: Version = NEVER
        """Everything up to this version is in it: older messages are repetitions."""

    def version(self, key: str) -> Version:
        entry = self.entries.get(key)
        return max(self.complete_at, NEVER if entry is None else entry.version, self.removed.get(key, NEVER))

    def apply(self, entry: Put | Purge) -> tuple[bool, Put | None]:
        """Take it in when it is news and there is room; returns whether that was so, and what was there before."""
        if entry.version <= self.version(entry.key):
            return False, None
        before = self.entries.get(entry.key)
        more = entry.weight - (0 if before is None else before.weight)
        if more > 0 and self._weight + self._weight_removed + more > self._memory:
            self.full = True
            return False, None
        if before is not None:
            del self.entries[entry.key]
            self.digest = (self.digest - before.digest) & MASK
            self._weight -= before.weight
        if self.removed.pop(entry.key, None) is not None:
            self._weight_removed -= FACT_BYTES + len(entry.key)
        if isinstance(entry, Purge):
            self.removed[entry.key] = entry.version
            self._weight_removed += entry.weight
        else:
            self.entries[entry.key] = entry
            self.digest = (self.digest + entry.digest) & MASK
            self._weight += entry.weight
        return True, before

    def keep(self, entry: Put, before: Put) -> None:
        """The entry can't be read: the last known value stays in its place."""
        self.entries[entry.key] = structs.replace(entry, fact=before.fact, fault="", weight=before.weight)
        self._weight += before.weight - entry.weight

    def agrees(self, synced: Synced) -> bool:
        return len(self.entries) == synced.count and self.digest == synced.digest

    def mark_complete(self, synced: Synced) -> None:
        self.complete_at = max(self.complete_at, (synced.epoch, synced.sequence))
        self._forget_removed()

    def forget_versions(self) -> None:
        """Keep the facts, and let any message about them be news."""
        self.entries = {key: structs.replace(entry, version=NEVER) for key, entry in self.entries.items()}
        self._forget_removed()
        self.complete_at = NEVER

    def _forget_removed(self) -> None:
        self.removed.clear()
        self._weight_removed = 0

    def facts(self) -> dict[str, Fact]:
        return {key: entry.fact for key, entry in self.entries.items() if entry.fact is not None}


class Extent(Struct, frozen=True):
    """What identifies a copy."""

    sequence: int
    """The last change that is known to be in it."""
    count: int
    digest: int


class Counters(Struct):
    """What a replica has seen since it started."""

    resets: int = 0
    upserts: int = 0
    deletes: int = 0
    gaps: int = 0
    """Times that `synced` disagreed with the view long enough for another snapshot."""
    repairs: int = 0
    """Times that a snapshot ended such a disagreement."""
    snapshots: int = 0
    snapshots_failed: int = 0
    late: int = 0
    """Messages that were repetitions, overtaken, or of an owner that has been replaced."""


class ReplicaState:
    """The view of one pool; calls `emit` with each event after the state has changed.

    When `snapshot_due` has come, the reader calls `snapshot_started`, `snapshot_entry` for each message, then
    `snapshot_read` or `snapshot_failed`. In seconds of its monotonic clock: `disagreement` until another snapshot,
    `lower_epoch` until an owner with a lower epoch, or a lower sequence of the same epoch, is believed, `retry` after a
    failed snapshot.
    """

    def __init__(
        self,
        emit: Callable[[Event], None],
        *,
        disagreement: float = 1.0,
        lower_epoch: float = 5.0,
        retry: float = 0.25,
        limits: BusLimits = LIMITS,
    ) -> None:
        self._emit = emit
        self._limits = limits
        self._disagreement = disagreement
        self._lower_epoch = lower_epoch
        self._retry = retry
        self._view = _Copy(limits.max_fact_memory)
        self._candidate: _Copy | None = None
        self._candidate_read = False
        """The snapshot that the candidate comes from is complete."""
        self._latest: Synced | None = None
        """The newest `synced` of the epoch that counts."""
        self._latest_heard: float | None = None
        """When its last live message came, not one of a snapshot."""
        self._latest_at = -math.inf
        """When its last message came, live or in a snapshot."""
        self._challengers: dict[int, float] = {}
        """Lower epochs that publish `synced`, and since when, with nothing of a higher one in between."""
        self._disagrees_since: float | None = None
        self.differs_since: float | None = None
        """Since when `synced` has disagreed with the view; None while it agrees."""
        self._snapshot_due: float | None = None
        self._connected = False
        self.epoch = 0
        self.synced_at: float | None = None
        """When a complete copy was seen first. The view ages from then on, but it is never taken away."""
        self.confirmed_at: float | None = None
        """When an owner last announced that the view is complete."""
        self.source_age = 0.0
        """How old the facts were then: seconds since their source had confirmed them."""
        self.generation = 0
        """Counts connections: a snapshot that was asked for over an earlier one is of no use."""
        self.counters = Counters()

    # The connection

    def connected(self, now: float) -> None:
        """The subscription is in place again: anything may have been missed."""
        self._connected = True
        self.generation += 1
        self._disagrees_since = None
        self._snapshot_due = now

    def disconnected(self) -> None:
        self._connected = False

    # What the bus brings

    def receive(self, entry: Entry, now: float) -> None:
        """A message of the subscription."""
        if self._challengers:
            self._challengers = {epoch: since for epoch, since in self._challengers.items() if epoch >= entry.epoch}
        if entry.epoch < self.epoch and not self._accept_lower_epoch(entry, now):
            self.counters.late += 1
            return
        if entry.epoch > self.epoch:
            self._follow(entry.epoch)
        if isinstance(entry, Synced):
            self._receive_synced(entry, now)
            return
        if self._candidate is not None:
            self._candidate.apply(entry)
        if self.synced:
            self._apply(entry)
        self._compare(now)

    def snapshot_started(self, now: float) -> None:
        """The reader requests a snapshot; live messages from now on are applied after it."""
        if self._disagrees_since is not None and self._disagrees_since + self._disagreement <= now:
            self.counters.gaps += 1
        self._disagrees_since = None
        self._snapshot_due = None
        self._candidate = _Copy(self._limits.max_fact_memory)
        self._candidate_read = False

    def snapshot_entry(self, entry: Entry, now: float) -> bool:
        """A message of the snapshot. Returns whether there is room for more."""
        if isinstance(entry, Synced):
            self._read_synced(entry, now)
        elif self._candidate is not None:  # otherwise the view has been confirmed in the meantime
            self._candidate.apply(entry)
            return not self._candidate.full
        return True

    def snapshot_read(self, now: float) -> None:
        """The snapshot is complete."""
        self.counters.snapshots += 1
        if self._candidate is not None:
            self._candidate_read = True
            self._snapshot_due = now + self._disagreement
            self._compare(now)

    def snapshot_failed(self, now: float) -> None:
        """No snapshot could be had; the view stays as it is."""
        self.counters.snapshots_failed += 1
        if self._candidate is not None:
            self._snapshot_due = now + self._retry

    def snapshot_due(self) -> float | None:
        """When the next snapshot is to be taken, a time that may have passed; None when none is needed."""
        if not self._connected:
            return None
        due = self._snapshot_due
        if self._disagrees_since is not None:
            disagreed = self._disagrees_since + self._disagreement
            due = disagreed if due is None else min(due, disagreed)
        return due

    # What the consumer may ask

    @property
    def synced(self) -> bool:
        """Whether a complete copy has been seen."""
        return self.synced_at is not None

    @property
    def extent(self) -> Extent:
        """Of the view."""
        return Extent(self._view.complete_at[1], len(self._view.entries), self._view.digest)

    @property
    def announced(self) -> Extent | None:
        """What the owner last said of a complete copy; None before it has."""
        latest = self._latest
        return None if latest is None else Extent(latest.sequence, latest.count, latest.digest)

    @property
    def challengers(self) -> int:
        """Number of lower epochs that publish."""
        return len(self._challengers)

    def facts(self) -> dict[str, Fact]:
        """The view: facts by key."""
        return self._view.facts()

    def entries(self) -> dict[str, Put]:
        """What the view has by key, also what can't be decoded."""
        return self._view.entries

    def age(self, now: float) -> float:
        """Seconds since an owner last announced that the view is complete; infinite when none ever was."""
        return math.inf if self.confirmed_at is None else max(0.0, now - self.confirmed_at)

    def unconfirmed(self, now: float) -> float:
        """Seconds since the facts were last confirmed by their source or, without such a report, since they were first
        complete; infinite if they never were."""
        if self.synced_at is None:
            return math.inf
        return now - self.synced_at if self.confirmed_at is None else self.source_age + self.age(now)

    # Epochs

    def _follow(self, epoch: int) -> None:
        self.epoch = epoch
        self._latest = None
        self._latest_heard = None

    def _accept_lower_epoch(self, entry: Entry, now: float) -> bool:
        """Whether a lower epoch counts from now on: its `synced` came long enough, and nothing of the higher one."""
        if not isinstance(entry, Synced):
            return False
        if entry.epoch not in self._challengers and len(self._challengers) >= self._limits.max_watchers:
            del self._challengers[next(iter(self._challengers))]
        if now - self._challengers.setdefault(entry.epoch, now) < self._lower_epoch:
            return False
        self._challengers.clear()
        self._follow(entry.epoch)
        self._view.forget_versions()
        self._snapshot_due = now
        return True

    # Completeness

    def _receive_synced(self, synced: Synced, now: float) -> None:
        before = self._latest
        recent = now - self._latest_at < self._lower_epoch
        if before is not None and synced.sequence < before.sequence and recent:
            self.counters.late += 1
            return
        self._latest, self._latest_heard, self.source_age = synced, now, synced.age
        self._latest_at = now
        if self.synced and self.differs_since is None and not self._view.agrees(synced):
            self.differs_since = now
        if self.synced and self._view.agrees(synced):
            self._confirm(now)
        elif self._candidate_agrees(synced):
            self._accept(now)
        elif self._candidate is not None:
            if self._snapshot_due is not None and (before is None or synced.sequence > before.sequence):
                # The snapshot fell into a burst, which is over now.
                self._snapshot_due = now
        elif self.synced and self._disagrees_since is None:
            self._disagrees_since = now
            if before is None:
                # A new owner has published what it has, so what the view has beyond that can't be on its way.
                self._snapshot_due = now

    def _read_synced(self, synced: Synced, now: float) -> None:
        """A `synced` out of a snapshot: it may be old, but never older than what it stands beside."""
        if synced.epoch > self.epoch:
            self._follow(synced.epoch)
        if synced.epoch == self.epoch and (self._latest is None or synced.sequence > self._latest.sequence):
            self._latest, self._latest_heard, self._latest_at = synced, None, now

    def _compare(self, now: float) -> None:
        if self._latest is None:
            return
        if self._disagrees_since is not None and self._view.agrees(self._latest):
            self._confirm(now)
        elif self._candidate_agrees(self._latest):
            self._accept(now)

    def _candidate_agrees(self, synced: Synced) -> bool:
        """Whether the candidate is complete. Before its snapshot is, it has all that live messages have brought; but
        an empty one says nothing then."""
        candidate = self._candidate
        return candidate is not None and (self._candidate_read or synced.count > 0) and candidate.agrees(synced)

    def _confirm(self, now: float) -> None:
        assert self._latest is not None
        self._view.mark_complete(self._latest)
        self._settle()
        self.confirmed_at = now

    def _accept(self, now: float) -> None:
        assert self._latest is not None
        assert self._candidate is not None
        self.counters.repairs += self.differs_since is not None
        view, self._view = self._view, self._candidate
        self._view.mark_complete(self._latest)
        for key, entry in list(self._view.entries.items()):
            if entry.fact is None and key in view.entries:
                self._view.keep(entry, view.entries[key])
        self._settle()
        if self._latest_heard is not None:
            self.confirmed_at = self._latest_heard
        same = self.synced and self._view.digest == view.digest and len(self._view.entries) == len(view.entries)
        if self.synced_at is None:
            self.synced_at = now
        if not same:
            self.counters.resets += 1
            self._emit(Reset(self._view.facts()))

    def _settle(self) -> None:
        self._candidate = None
        self._disagrees_since = None
        self.differs_since = None
        self._snapshot_due = None

    # The view

    def _apply(self, entry: Put | Purge) -> None:
        news, before = self._view.apply(entry)
        if not news:
            self.counters.late += 1
        elif isinstance(entry, Purge):
            if before is not None and before.fact is not None:
                self.counters.deletes += 1
                self._emit(Delete(entry.key))
        elif entry.fact is None:
            if before is not None:
                self._view.keep(entry, before)
        elif before is None or before.fact is None or before.digest != entry.digest:
            self.counters.upserts += 1
            self._emit(Upsert(entry.key, entry.fact))

    def __repr__(self) -> str:
        state = "synced" if self.synced else "not synced"
        if self._candidate is not None:
            state += f", checking a candidate of {len(self._candidate.entries)}"
        if self._disagrees_since is not None:
            state += ", disagreeing"
        return (
            f"<ReplicaState {state}, facts={len(self._view.entries)} epoch={self.epoch} "
            f"sequence={self._view.complete_at[1]} resets={self.counters.resets}>"
        )
