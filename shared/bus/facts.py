"""Events about a pool's facts, and the messages of the endpoints bucket that they come from."""

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from shared.bus.codec import SHOWN, decode, decode_fact, fact_digest
from shared.bus.epochs import EPOCHS
from shared.bus.errors import Malformed
from shared.bus.messages import FactEnvelope, Synced
from shared.bus.subjects import SYNCED, fact_key, parse_key
from shared.limits import LIMITS
from shared.model import Fact, entries_of

EPOCH_HEADER = "Pointsman-Epoch"
SEQUENCE_HEADER = "Pointsman-Sequence"
KEY_HEADER = "Pointsman-Key"
"""Headers of a delete, which has no body. The key is that of the delete: copied to another key, it is refused. Owners
of an earlier version don't write it."""

Version: TypeAlias = tuple[int, int]
"""(epoch, sequence)"""
NEVER: Version = (-2 * EPOCHS, -1)

FACT_BYTES, ENTRY_BYTES = 1000, 200
"""Bytes that a fact takes beside its key and its encoded form, and each entry of its lists and maps."""


class Reset(Struct, frozen=True):
    """All facts of the pool, by key. What is not in it is gone."""

    facts: dict[str, Fact]


class Upsert(Struct, frozen=True):
    """One fact is new or has changed."""

    key: str
    fact: Fact


class Delete(Struct, frozen=True):
    """One fact is gone."""

    key: str


Event: TypeAlias = Reset | Upsert | Delete


class Put(Struct, frozen=True):
    """A fact as it came from the bucket."""

    key: str
    version: Version
    digest: int
    fact: Fact | None
    """None when this program can't decode it: it counts for completeness, and its last known value stays."""
    fault: str = ""
    """Why it couldn't be decoded."""
    weight: int = FACT_BYTES
    """Bytes of memory that it takes, about."""

    @property
    def epoch(self) -> int:
        return self.version[0]


class Purge(Struct, frozen=True):
    """A delete as it came from the bucket."""

    key: str
    version: Version

    @property
    def weight(self) -> int:
        """As of what was written."""
        return FACT_BYTES + len(self.key)

    @property
    def epoch(self) -> int:
        return self.version[0]


Entry: TypeAlias = Put | Purge | Synced


def parse_entry(key: str, data: bytes, headers: Mapping[str, str], max_entries: int = LIMITS.max_fact_entries) -> Entry:
    """One message of the bucket. Raises Malformed, also for a delete without order (`nats kv del`)."""
    try:
        pool, kind, _ = parse_key(key)
    except ValueError as error:
        raise Malformed(str(error)) from error
    if operation := headers.get("KV-Operation"):
        try:
            epoch, sequence = int(headers[EPOCH_HEADER]), int(headers[SEQUENCE_HEADER])
            if not 0 <= epoch < EPOCHS:
                raise ValueError(f"no epoch: {epoch}")
        except (KeyError, ValueError) as error:
            raise Malformed(f"{operation} of {key} without {EPOCH_HEADER} and {SEQUENCE_HEADER}") from error
        if (named := headers.get(KEY_HEADER, key)) != key:
            raise Malformed(f"{operation} of another key: {named[:SHOWN]!r}")
        return Purge(key, (epoch, sequence))
    if kind == SYNCED:
        synced = decode(Synced, data)
        if synced.pool not in ("", pool):
            raise Malformed(f"{SYNCED} of another pool: {synced.pool[:SHOWN]!r}")
        return synced
    envelope = decode(FactEnvelope, data)
    version, digest = (envelope.epoch, envelope.sequence), fact_digest(key, envelope.fact)
    try:
        fact = decode_fact(envelope.fact, max_entries)
    except Malformed as error:
        fault = str(error)[:SHOWN]  # it quotes what was sent
        return Put(key, version, digest, None, fault, weight=FACT_BYTES + len(key) + len(fault))
    if fact_key(pool, fact) != key:
        fault = f"a fact of another key: {type(fact).__name__}"
        return Put(key, version, digest, None, fault, weight=FACT_BYTES + len(key) + len(fault))
    weight = FACT_BYTES + len(key) + len(envelope.fact) + ENTRY_BYTES * entries_of(fact)
    return Put(key, version, digest, fact, weight=weight)
