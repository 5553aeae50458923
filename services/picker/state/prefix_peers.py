"""What other pickers announce of their prefix placements, in the order in which they said it.

A picker's run is an *origin*. Its batches are applied in their order, each once. So at every reader, the blocks with
the origin's mark are those that stand on its word, but for blocks that the reader has forgotten for their age. Batches
of different origins concern different marks, so their order doesn't matter. What is missing is asked for: the batches,
or a dump. A dump names the batches that it includes at least, and what comes meanwhile is held and applied after it:
the last word on each block is the same as if all had come in order.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from services.picker.state.block_states import FORMER, MARKS
from services.picker.state.lru_prefix_index import LruPrefixIndex
from shared.bus.codec import BATCHES_MASK, batch_digest
from shared.bus.columns import unpack_counts, unpack_hashes
from shared.bus.messages import MAX_BLOCKS, PrefixBatch, PrefixOrigin, PrefixPiece

OVERTAKEN = 0.05
"""Seconds for which a missing batch may only be late."""
AGAIN = 1.5
"""Seconds after which what is still missing is asked for again; then nobody answers any more."""
ATTEMPTS = 3
"""How often it is asked for. If nobody answers, it is done without."""
LISTENING = 10.0
"""Seconds after an origin's last message for which it may be listening."""
FORGOTTEN = 300.0
"""Seconds after an origin's last message from which on it takes nothing back."""
MAX_ORIGINS = 1000
"""Beyond it, further ones are ignored until others are forgotten, which are then those that don't listen."""
MAX_HELD = 32 * 2**20
"""Bytes of batches that are held, of all origins; a batch that finds no room is missing."""
MAX_BATCHES = 4096
"""Batches that are held of an origin: to let go of them takes some milliseconds."""
MAX_TRANSLATED = 10_000
"""Marks of a dump that are remembered: usual dumps have a few."""
BATCH = 500
"""Bytes that a held batch counts as in addition to its sender's id and its columns."""
DIFFERENT = 2.0
"""Seconds for which an origin's digest has to differ before its placements are restored."""
RESTORED_AGAIN = 10.0
"""Seconds from one such restoring of an origin to the next."""
AHEAD = 1000
"""Batches by which a held one may be ahead of what its origin says is its last."""


class Origin:
    """One run of a picker, as far as it is known here."""

    __slots__ = (
        *("applied", "attempts", "differs_since", "digest", "held", "id", "last_seen", "latest", "mark"),
        *("request_at", "requested", "restore_at", "restoring", "run"),
    )

    def __init__(self, id: str, run: int, last_seen: float) -> None:
        self.id, self.run, self.last_seen = id, run, last_seen
        self.mark = 0
        """0 until it has announced anything."""
        self.applied = self.latest = 0
        """The numbers of the last batch that is applied, and of the last one that there is."""
        self.digest: int | None = 0
        """Of the batches that are applied; None if it isn't known."""
        self.differs_since: float | None = None
        """Since when it isn't the one that the origin announces."""
        self.restore_at = 0.0
        """When to restore its placements, should it still differ."""
        self.held: dict[int, PrefixBatch] = {}
        self.restoring = False
        """Its part of a dump is coming."""
        self.requested = False
        """A request is under way, which may take long: there is no second one."""
        self.attempts = 0
        self.request_at = 0.0
        """When to request what is missing; 0 while nothing is."""

    def compare(self, batch: PrefixBatch, now: float) -> None:
        """Compare the number and digest here with what a batch says of the batches up to itself."""
        if batch.digest is None or batch.sequence > self.applied:
            return
        # It may only have been overtaken. If all that come are behind, somebody gave a number in its name.
        behind = batch.sequence < self.applied
        if not behind and (self.digest is None or batch.digest == self.digest):
            self.differs_since = None
        elif self.differs_since is None:
            self.differs_since = now
            self.restore_at = now + DIFFERENT

    @property
    def waiting(self) -> bool:
        """Something of it is on its way that was asked for."""
        return self.requested or self.restoring

    def __repr__(self) -> str:
        return f"<Origin {self.id!r} {self.applied} of {self.latest}, {len(self.held)} held>"


class PrefixPeers:
    """All origins but this picker's own. `joining` until what was placed before is here, or there is nothing: all
    batches are held meanwhile."""

    def __init__(self, index: LruPrefixIndex) -> None:
        self.joining = True
        self.batches = self.blocks = self.gaps = self.dumps = 0
        """Counts: what was applied, and how often something was missing or restored."""
        self.differences = self.repairs = 0
        """How often an origin's placements weren't those that it announced, for long; and were restored."""
        self._index = index
        self._origins: dict[tuple[str, int], Origin] = {}
        self._free = [mark for mark in reversed(MARKS) if mark > FORMER]
        self._former: set[int] = set()
        """Marks that `FORMER` is replacing."""
        self._held = 0

    def receive(self, batch: PrefixBatch, now: float) -> None:
        """A batch has come, be it late, twice or in another order."""
        origin = self.origin(batch.sender, batch.run, now)
        if origin is None:
            return
        origin.last_seen = now
        origin.latest = max(origin.latest, batch.sequence)
        origin.compare(batch, now)
        if not batch.servers or batch.sequence in origin.held:
            return
        if batch.sequence <= origin.applied and not origin.restoring:
            return
        if self.joining or origin.restoring or batch.sequence != origin.applied + 1:
            size = _size(batch)
            if self._held + size <= MAX_HELD and len(origin.held) < MAX_BATCHES:
                self._held += size
                origin.held[batch.sequence] = batch
            return
        self._apply(origin, batch)
        origin.compare(batch, now)
        self.apply_held(origin, self.blocks + MAX_BLOCKS)

    def different(self, now: float) -> list[Origin]:
        """The origins whose placements are to be restored at this moment: what was applied isn't what they announced,
        such as a batch in their name. Called from time to time."""
        found: list[Origin] = []
        for origin, since in self._differing(now):
            if now >= origin.restore_at and not (self.joining or origin.waiting):
                self.differences += origin.restore_at == since + DIFFERENT
                origin.restore_at = now + RESTORED_AGAIN
                found.append(origin)
        return found

    def differs_for(self, now: float) -> float:
        """Seconds for which an origin's placements have differed; the longest time."""
        return now - min((since for _, since in self._differing(now)), default=now)

    def _differing(self, now: float) -> Iterator[tuple[Origin, float]]:
        """The origins that differ and are heard, and since when. One that has ended can't say what is right."""
        for origin in self._origins.values():
            if origin.differs_since is not None and now - origin.last_seen < LISTENING:
                yield origin, origin.differs_since

    def missing(self, now: float) -> list[Origin]:
        """The origins to be asked for batches at this moment. Called from time to time; applies some that are held."""
        found: list[Origin] = []
        if self.joining:
            return found
        until = self.blocks + MAX_BLOCKS
        for origin in list(self._origins.values()):
            if origin.applied + 1 in origin.held and not origin.restoring:
                self.apply_held(origin, until)
            if origin.requested:
                continue
            if origin.latest <= origin.applied or origin.restoring or origin.applied + 1 in origin.held:
                origin.request_at, origin.attempts = 0.0, 0
            elif not origin.request_at:
                origin.request_at = now + OVERTAKEN
            elif now >= origin.request_at:
                origin.request_at = now + AGAIN
                origin.attempts += 1
                if origin.attempts == 1:
                    self.gaps += 1
                if origin.attempts > ATTEMPTS:
                    self.drop_origin(origin)
                else:
                    found.append(origin)
        return found

    def answered(self, origin: Origin, sequence: int) -> None:
        """The origin has said that this is the number of its last batch, and has given what was missing up to it."""
        for number in [number for number in origin.held if number > sequence + AHEAD]:
            self._release(origin, number)
        origin.latest = max(sequence, origin.applied, *origin.held, 0)

    def complete(self) -> None:
        """There is nothing to wait for: what is held is applied, and what is missing then is asked for."""
        self.joining = False
        until = self.blocks + MAX_BLOCKS
        for origin in self._origins.values():
            self.apply_held(origin, until)

    def origins(self) -> Iterable[Origin]:
        """Those that are known."""
        return self._origins.values()

    def listening(self, now: float) -> int:
        """How many peers receive the announcements."""
        return len({origin.id for origin in self._origins.values() if now - origin.last_seen < LISTENING})

    def expire(self, now: float) -> None:
        """Forget origins that have been silent for long. Their blocks stay."""
        most = LISTENING if len(self._origins) >= MAX_ORIGINS else FORGOTTEN
        for origin in list(self._origins.values()):
            if now - origin.last_seen > most and not origin.waiting:
                self.drop_origin(origin)

    def table(self, id: str, run: int, sequence: int, digest: int | None = None) -> tuple[list[PrefixOrigin], int]:
        """(the origins behind the marks, of which this picker's own is the first; the bits of the marks in use)."""
        unknown = PrefixOrigin(id="", run=0, sequence=0)
        marked = {
            origin.mark: PrefixOrigin(id=origin.id, run=origin.run, sequence=origin.applied, digest=origin.digest)
            for origin in self._origins.values()
            if origin.mark > FORMER
        }
        own = PrefixOrigin(id=id, run=run, sequence=sequence, digest=digest)
        found = [own, *(marked.get(mark, unknown) for mark in MARKS[1:])]
        while found[-1] is unknown:
            found.pop()
        used = {*MARKS[:2], *marked, *self._former}
        return found, sum(1 << bit for bit, mark in enumerate(MARKS) if mark in used)

    def state(self) -> dict[str, object]:
        """For `/debug/state`."""
        return {
            "complete": not self.joining,
            "origins": [
                {"id": origin.id, "run": origin.run, "applied": origin.applied, "latest": origin.latest}
                for origin in self._origins.values()
            ],
        }

    def origin(self, id: str, run: int, now: float) -> Origin | None:
        """The origin, which may be new; None if there are too many."""
        origin = self._origins.get((id, run))
        if origin is None and len(self._origins) < MAX_ORIGINS:
            origin = self._origins[id, run] = Origin(id, run, now)
        return origin

    def mark_of(self, origin: Origin) -> int:
        """The origin's mark, which it gets now if it has none of its own."""
        if origin.mark <= FORMER:
            origin.mark = self.allocate_mark()
        return origin.mark

    def allocate_mark(self) -> int:
        """An unused mark; `FORMER` if there is none."""
        return self._free.pop() if self._free else FORMER

    def release_mark(self, mark: int, into: int) -> None:
        """Release the mark: another one replaces it, or none (0), and later it is free."""
        if mark > FORMER:
            if into:
                self._former.add(mark)
            self._index.convert(mark, into, partial(self._on_mark_free, mark))

    def _on_mark_free(self, mark: int) -> None:
        self._former.discard(mark)
        self._free.insert(0, mark)

    def _apply(self, origin: Origin, batch: PrefixBatch) -> None:
        mark = self.mark_of(origin)
        for (server, blocks), withdrawn in zip(_rows(batch), batch.withdrawn, strict=True):
            if not withdrawn:
                self._index.hold(server, blocks, mark)
            elif mark != FORMER:  # others have it, too
                self._index.withdraw(server, blocks, mark)
        origin.applied = batch.sequence
        if origin.digest is not None:
            origin.digest = origin.digest + batch_digest(batch) & BATCHES_MASK
        self.batches += 1
        self.blocks += len(batch.blocks) // 8

    def apply_held(self, origin: Origin, until: int) -> None:
        """Apply what is held and follows until so many blocks have been applied; the rest later."""
        for number in [number for number in origin.held if number <= origin.applied]:
            self._release(origin, number)
        while origin.applied + 1 in origin.held and self.blocks < until:
            self._apply(origin, self._release(origin, origin.applied + 1))

    def drop_origin(self, origin: Origin) -> None:
        """Forget an origin, but not its blocks. If it publishes again, it is a new one."""
        for number in list(origin.held):
            self._release(origin, number)
        self.release_mark(origin.mark, FORMER)
        self._origins.pop((origin.id, origin.run), None)

    def _release(self, origin: Origin, number: int) -> PrefixBatch:
        batch = origin.held.pop(number)
        self._held -= _size(batch)
        return batch

    def __repr__(self) -> str:
        return f"<PrefixPeers {', '.join(map(repr, self._origins.values())) or 'none'}>"


class Restore:
    """The pieces of a dump on their way into the index: of all origins, or of one that is given."""

    def __init__(self, peers: PrefixPeers, index: LruPrefixIndex, id: str, now: float, origin: Origin | None) -> None:
        """`id` is this picker's."""
        self._peers, self._index, self._id, self._now = peers, index, id, now
        self._origin = origin
        self._mark = 0
        self._numbers: list[tuple[Origin, PrefixOrigin]] = []
        self._marks: list[int] | None = None
        self._translated: dict[int, int] = {}
        if origin is not None:
            origin.restoring = True
            self._mark = peers.allocate_mark()

    def take(self, piece: PrefixPiece) -> None:
        """The next piece, of at most `MAX_BLOCKS` blocks."""
        if self._marks is None:
            self._marks = list(self._marks_of(piece))
        translated, known = self._translated, (1 << len(self._marks)) - 1
        if len(translated) > MAX_TRANSLATED:
            translated.clear()
        marks = [mark & known for mark in unpack_hashes(piece.marks).tolist()]
        for mark in set(marks):
            if mark not in translated:
                translated[mark] = self._mark_for(mark)
        at = 0
        for server, blocks in _rows(piece):
            row = marks[at : at + len(blocks)]
            self._index.hold(server, blocks, map(translated.__getitem__, row))
            at += len(blocks)

    def finish(self, sequence: int) -> None:
        """That was the last piece; `sequence` is the last batch of its sender."""
        self._peers.dumps += 1
        origin = self._origin
        for restored, sent in self._numbers:
            if restored is origin or sent.sequence > restored.applied:
                restored.applied, restored.digest = sent.sequence, sent.digest
        if origin is None:
            self._peers.complete()
        else:
            self._peers.release_mark(origin.mark, 0)
            origin.mark, origin.restoring = self._mark, False
            self._peers.repairs += origin.differs_since is not None
            origin.differs_since = None
            self._peers.apply_held(origin, self._peers.blocks + MAX_BLOCKS)
            self._peers.answered(origin, sequence)

    def abandon(self) -> None:
        """No more pieces come."""
        if self._origin is not None:
            self._peers.release_mark(self._mark, 0)
            self._origin.restoring = False

    def _marks_of(self, piece: PrefixPiece) -> Iterator[int]:
        """The marks here of the origins of a dump."""
        if self._origin is not None:
            self._numbers = [(self._origin, sent) for sent in piece.origins[:1]]
            yield self._mark
            return
        for sent in piece.origins:
            known = sent.id and sent.id != self._id
            origin = self._peers.origin(sent.id, sent.run, self._now) if known else None
            if origin is None:
                yield FORMER
            else:
                self._numbers.append((origin, sent))
                yield self._peers.mark_of(origin)

    def _mark_for(self, sent: int) -> int:
        assert self._marks is not None
        mark = 0
        for bit, here in enumerate(self._marks):
            if sent >> bit & 1:
                mark |= here
        return mark or FORMER

    def __repr__(self) -> str:
        return f"<Restore of {self._origin or 'all'}>"


def _size(batch: PrefixBatch) -> int:
    """Bytes that a batch counts as while it is held, about its memory."""
    columns = (batch.servers, batch.withdrawn, batch.counts, batch.blocks)
    return BATCH + len(batch.sender) + sum(map(len, columns))


def _rows(message: PrefixBatch | PrefixPiece) -> Iterator[tuple[int, list[int]]]:
    """(server, its blocks) of each row."""
    blocks = unpack_hashes(message.blocks).tolist()
    at = 0
    for server, count in zip(
        unpack_hashes(message.servers).tolist(), unpack_counts(message.counts).tolist(), strict=True
    ):
        yield server, blocks[at : at + count]
        at += count
