"""Computes the difference between the desired facts and those in the endpoints bucket.

Pure: the publisher reports which changes were acknowledged and which may have been written.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, islice

import msgspec
from msgspec import Struct

from shared.bus.codec import MASK, decode, encode, encode_fact, fact_digest
from shared.bus.errors import Malformed
from shared.bus.facts import Delete, Upsert
from shared.bus.messages import FactEnvelope, Synced
from shared.bus.subjects import EPOCH, SYNCED, parse_key, split_pool, synced_key
from shared.model import Fact

_STEP = 500
"""Foreign keys that are looked at in one go, so that any number of them takes no long turn."""


class Change(Struct, frozen=True):
    """A key that isn't as it should be."""

    key: str
    raw: bytes | None
    """The encoded fact to write, or None to delete the key."""


class BucketReconciler:
    """The desired and the stored facts, by the bucket's keys. The publisher writes `epoch` and each pool's `synced`."""

    def __init__(self) -> None:
        self._facts: dict[str, Fact] = {}
        self._desired: dict[str, bytes] = {}
        self._stored: dict[str, bytes] = {}
        self._unknown: set[str] = set()
        """Keys that may or may not be in the bucket, with whatever content."""
        self._foreign: deque[str] = deque()
        """Further keys in the bucket that nobody wanted when it was read."""
        self._repeated: dict[str, bytes] = {}
        """Content that was found to be right and will be written again all the same."""
        self._totals: dict[str, tuple[int, int]] = {}
        """Per pool, (count, digest) of the stored facts."""
        self._pools: tuple[str, ...] = ()
        self._kept: frozenset[str] = frozenset()
        """Pools and single keys that are left as they are in the bucket."""
        self._found: dict[str, bytes] = {}
        """What of these was found there."""
        self._found_ages: dict[str, float] = {}
        """Those pools of which a complete copy was found, with the age that it was said to have."""
        self._meanwhile: set[str] | None = None
        """Keys that were written since `begin_reading`; None: the bucket isn't being read."""
        self._fresh: dict[str, None] = {}
        """Keys that are to be written meanwhile."""
        self._due: tuple[dict[str, Change], ...] | None = None
        """The changes to write, by key, in the order of `changes`; None after something that concerns all keys."""
        self.has_desired = False
        """Something is wanted, if only that there be nothing."""
        self.epoch = 0
        self.sequence = 0

    @property
    def pools(self) -> tuple[str, ...]:
        return self._pools

    @property
    def kept(self) -> frozenset[str]:
        """Pools and single keys that are left as they are in the bucket."""
        return self._kept

    @property
    def complete(self) -> tuple[str, ...]:
        """The pools that may be announced as complete."""
        return tuple(pool for pool in self._pools if pool not in self._kept or pool in self._found_ages)

    @property
    def keys(self) -> int:
        """The least number of keys when nothing is to be written: facts, `epoch`, `synced` of each complete pool."""
        return len(self._stored) + len(self.complete) + 1

    def set_desired(self, facts: Mapping[str, Fact], pools: Collection[str], kept: Collection[str] = ()) -> None:
        """Set the desired content. `pools` are the tokens of all pools, also of empty ones. `kept` stays as it is
        found: further pools by token, and single facts of other pools by key.

        Raises ValueError, without any change, for a key that isn't a fact's or lies in none of the other pools.
        """
        kept_pools = {name for name in kept if "." not in name}
        for pool in (*pools, *kept_pools):
            split_pool(pool)
        stated = set(pools) - kept_pools
        wanted: dict[str, bytes] = {}
        same = stated == set(self._pools) - self._kept
        checked = self._facts.keys() if same else ()
        for key in set(kept) - self._kept if same else kept:
            if key not in kept_pools:
                _require_fact(key, stated)
        for key, fact in facts.items():
            if key not in checked:
                _require_fact(key, stated)
            wanted[key] = self._desired[key] if self._facts.get(key) is fact else encode_fact(fact)
        if self._meanwhile is not None:
            self._fresh |= {key: None for key, raw in wanted.items() if self._desired.get(key) != raw}
            self._fresh |= dict.fromkeys(self._facts.keys() - facts.keys())
        self._due = None
        self._keep(frozenset(kept))
        self._facts = dict(facts)
        self._desired = self._found | wanted
        self._pools = tuple(sorted({*pools, *kept_pools}))
        self.has_desired = True

    def apply(self, events: Sequence[Upsert | Delete]) -> None:
        """Change single facts; the cost doesn't depend on the number of facts. Raises ValueError as `set_desired`."""
        pools = set(self._pools) - self._kept
        for event in events:
            if event.key not in self._facts:
                _require_fact(event.key, pools)
        for event in events:
            if isinstance(event, Upsert):
                self._facts[event.key] = event.fact
                self._desired[event.key] = encode_fact(event.fact)
            elif self._facts.pop(event.key, None) is not None:
                del self._desired[event.key]
                if event.key in self._found:
                    self._desired[event.key] = self._found[event.key]
            if self._meanwhile is not None:
                self._fresh[event.key] = None
            self._review(event.key)

    def _keep(self, kept: frozenset[str]) -> None:
        if kept != self._kept:
            complete = self.complete
            self._kept = kept
            self._found = {key: raw for key, raw in (self._stored | self._found).items() if self._is_kept(key)}
            self._found_ages = {pool: self._found_ages.get(pool, 0.0) for pool in complete if pool in kept}

    def _is_kept(self, key: str) -> bool:
        return key in self._kept or _pool(key) in self._kept

    def start_epoch(self, epoch: int) -> None:
        """Begin an epoch; its changes count from 1."""
        self.epoch = epoch
        self.sequence = 0

    def next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence

    def envelope(self, raw: bytes) -> bytes:
        """A fact, encoded for its key, as the next change."""
        return encode(FactEnvelope(epoch=self.epoch, sequence=self.next_sequence(), fact=msgspec.Raw(raw)))

    def changes(self, limit: int | None = None) -> list[Change]:
        """What to write, or its first `limit` changes: news, then deletes (so that a pool never gets emptier than it
        is), those of facts before other keys, then repetitions. The cost depends only on `limit`. Ask again after each
        batch, so that news comes first."""
        due = self._prepare()
        while self._foreign and (limit is None or sum(map(len, due)) < limit):
            for _ in range(min(_STEP, len(self._foreign))):
                key = self._foreign.popleft()
                if self._is_orphan(key):
                    self._unknown.add(key)
                    self._review(key)
        return list(islice(chain.from_iterable(changes.values() for changes in due), limit))

    @property
    def due(self) -> int:
        """About how many changes there are: foreign keys may be desired by now."""
        return sum(map(len, self._prepare())) + len(self._foreign)

    @property
    def settled(self) -> bool:
        """Whether only deletes of undesired keys are left to write."""
        news, deletes, _, repetitions = self._prepare()
        return not (news or deletes or repetitions)

    def begin_reading(self, *, known: bool) -> None:
        """The bucket is read from now on, for `observe`. Meanwhile, `fresh_changes` can be written. `known`: but for
        what others did, it is known what is stored."""
        self._meanwhile = set()
        self._fresh = {}
        if known and self._due is not None:
            news, deletes, _, _ = self._due
            self._fresh = dict.fromkeys([*news, *deletes])

    def fresh_changes(self, limit: int) -> list[Change]:
        """The first `limit` changes of what is wanted otherwise since `begin_reading`, or is known to have been due
        then. Each is returned once."""
        keys = list(islice(self._fresh, limit))
        for key in keys:
            del self._fresh[key]
        return [Change(key, self._desired.get(key)) for key in keys]

    def _prepare(self) -> tuple[dict[str, Change], ...]:
        if self._due is None:
            self._due = ({}, {}, {}, {})
            for key in [*self._desired, *sorted((self._stored.keys() | self._unknown) - self._desired.keys())]:
                self._review(key)
        return self._due

    def knows(self, key: str) -> bool:
        """Whether a key is desired, or this owner writes or has written it."""
        return not self._is_orphan(key) or key == EPOCH or (key.endswith(f".{SYNCED}") and _pool(key) in self._pools)

    def _is_orphan(self, key: str) -> bool:
        return key not in self._desired and key not in self._stored

    def _review(self, key: str) -> None:
        """Find out whether the key has to be written."""
        if self._due is None:
            return
        news, deletes, removals, repetitions = self._due
        for changes in self._due:
            changes.pop(key, None)
        raw, repeated = self._desired.get(key), self._repeated.get(key)
        if raw is not None:
            if self._stored.get(key) != raw:
                (repetitions if repeated == raw else news)[key] = Change(key, raw)
        elif key in self._stored or repeated is not None:
            deletes[key] = Change(key, None)
        elif key in self._unknown:
            removals[key] = Change(key, None)

    def orphans(self) -> list[str]:
        """Keys that are, or may be, in the bucket, and are to be deleted."""
        known = sorted((self._stored.keys() | self._unknown) - self._desired.keys())
        return known + [key for key in self._foreign if self._is_orphan(key)]

    def acknowledge(self, change: Change) -> None:
        """A change was acknowledged."""
        self._note_written(change.key)
        self._unknown.discard(change.key)
        self._repeated.pop(change.key, None)
        self._unstore(change.key)
        if change.raw is not None:
            self._store(change.key, change.raw)
        self._review(change.key)

    def mark_unknown(self, change: Change) -> None:
        """A change may have been written or not."""
        self._note_written(change.key)
        self._unstore(change.key)
        self._unknown.add(change.key)
        self._review(change.key)

    def _note_written(self, key: str) -> None:
        if self._meanwhile is not None:
            self._meanwhile.add(key)

    def recognize(self, key: str, raw: bytes) -> bytes | None:
        """The content of a key (an encoded fact or a `synced`) as `observe` needs it: if it is desired, believed to be
        there, or kept; otherwise None. Known content isn't held twice."""
        for known in (self._desired.get(key), self._stored.get(key)):
            if known == raw:
                return known
        return raw if self._is_kept(key) and _is_key(key) else None

    def observe(
        self, found: Iterable[tuple[str, bytes | None]], foreign: Collection[str] = (), *, trust: bool = False
    ) -> int:
        """Compare with the bucket: (key, content according to `recognize`), and keys that this owner doesn't know.

        With `trust`, correct keys needn't be written; without it, everything must be. Undesired keys will be deleted,
        also the `synced` of a pool that no longer exists. What was written since `begin_reading` is as it was written:
        a message of it may have been read before. Returns how many keys that were believed to be correct aren't.
        """
        believed, self._stored, self._due = self._stored, {}, None
        meanwhile, self._meanwhile, self._fresh = self._meanwhile or set(), None, {}
        self._totals.clear()
        self._unknown &= meanwhile
        self._foreign = deque(foreign)
        self._repeated.clear()
        for key in self._found.keys() - self._facts.keys():
            del self._desired[key]
        self._found.clear()
        self._found_ages.clear()
        ours = {synced_key(pool): pool for pool in self._pools}
        seen: dict[str, bytes | None] = {}
        for key in meanwhile & believed.keys():
            seen[key] = believed[key]
            self._store(key, believed[key])
        for key, raw in dict(found).items():  # one that was written again during the reading was found twice
            if key == EPOCH or key in meanwhile:
                continue
            seen[key] = raw
            if key in ours:
                if raw is not None and ours[key] in self._kept:
                    self._find_synced(ours[key], raw)
                continue
            if raw is not None and self._is_kept(key) and key not in self._facts:
                self._found[key] = self._desired[key] = raw
            right = raw is not None and self._desired.get(key) == raw
            if raw is not None and right and trust:
                self._store(key, raw)
                continue
            self._unknown.add(key)
            if raw is not None and right:
                self._repeated[key] = raw
        # What isn't wanted any more, a fact or a pool's `synced`, is there as it was left: nothing is odd about it.
        odd = {key for key, raw in believed.items() if seen.get(key) != raw}
        odd |= {key for key in self._unknown - believed.keys() - meanwhile if not key.endswith(f".{SYNCED}")}
        return len(odd) + sum(not key.endswith(f".{SYNCED}") for key in self._foreign)

    def found_age(self, pool: str) -> float | None:
        """The age that a kept pool had when it was read; None for other pools."""
        return self._found_ages.get(pool)

    def _find_synced(self, pool: str, raw: bytes) -> None:
        try:
            synced = decode(Synced, raw)
        except Malformed:
            return  # whether the content is complete is unknown
        if synced.pool in ("", pool):
            self._found_ages[pool] = synced.age

    def synced(self, pool: str, age: float = 0.0) -> Synced:
        """The `synced` of a complete copy of the pool. Write it when no change is in doubt."""
        count, digest = self._totals.get(pool, (0, 0))
        return Synced(epoch=self.epoch, sequence=self.sequence, count=count, digest=digest, age=age, pool=pool)

    def _store(self, key: str, raw: bytes) -> None:
        self._stored[key] = raw
        self._count(key, raw, 1)

    def _unstore(self, key: str) -> None:
        raw = self._stored.pop(key, None)
        if raw is not None:
            self._count(key, raw, -1)

    def _count(self, key: str, raw: bytes, sign: int) -> None:
        count, digest = self._totals.get(_pool(key), (0, 0))
        self._totals[_pool(key)] = count + sign, (digest + sign * fact_digest(key, raw)) & MASK

    def __repr__(self) -> str:
        return (
            f"<BucketReconciler epoch={self.epoch} sequence={self.sequence} desired={len(self._desired)} "
            f"stored={len(self._stored)} unknown={len(self._unknown) + len(self._foreign)} pools={len(self._pools)}>"
        )


def _require_fact(key: str, pools: Collection[str]) -> None:
    """Raises ValueError unless it is the key of a fact of one of the pools."""
    pool, kind, _ = parse_key(key)
    if kind == SYNCED or pool not in pools:
        known = ", ".join(sorted(pools)) or "(none)"
        raise ValueError(f"key {key!r} is no fact of one of the pools {known}")


def _is_key(key: str) -> bool:
    """Whether a pool can have such a key."""
    try:
        parse_key(key)
    except ValueError:
        return False
    return True


def _pool(key: str) -> str:
    """The pool's token in a key."""
    return key.partition(".")[0]
