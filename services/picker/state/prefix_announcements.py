"""What this picker publishes of its prefix placements: numbered batches, of which it can repeat the last, and
dumps.

A batch has only blocks that are news to the peers. Nothing waits for a connection: peers miss a batch that doesn't
arrive, and request it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from services.picker.state.block_states import marks_of
from services.picker.state.lru_prefix_index import Change, LruPrefixIndex
from shared.bus.codec import BATCHES_MASK, batch_digest
from shared.bus.columns import pack_counts, pack_hashes
from shared.bus.messages import MAX_BATCHES, MAX_BLOCKS, PrefixBatch, PrefixOrigin, PrefixPiece

MAX_REPEATED = 4 * 2**20
"""Bytes of batches that can be repeated: some ten seconds of 1 000 requests/s."""
ANSWER = 64 * 2**10
"""Bytes of repeated batches in an answer, at least one batch."""
MAX_DUMPS = 8
"""Dumps that are being sent at once; a request for another one is answered with "busy"."""
IDLE = 2.0
"""Seconds after which a dump ends for another one if nobody has asked for its next piece."""


class Announcements:
    """The batches of one run of a picker."""

    def __init__(self, id: str, run: int) -> None:
        self.id, self.run = id, run
        self.sequence = 0
        """Of the last batch."""
        self.digest = 0
        """Of all batches up to it."""
        self._sent: deque[bytes] = deque()
        """The last batches, encoded; the last one's number is `sequence`."""
        self._bytes = 0

    def batch(self, hashing: str, *, complete: bool, changes: Sequence[Change] = ()) -> PrefixBatch:
        """The next batch, of at most `MAX_BLOCKS` blocks; without changes, a heartbeat."""
        self.sequence += bool(changes)
        batch = PrefixBatch(
            sender=self.id,
            run=self.run,
            sequence=self.sequence,
            hashing=hashing,
            complete=complete,
            digest=self.digest,
            servers=pack_hashes([change.server for change in changes]),
            withdrawn=bytes(change.withdrawn for change in changes),
            counts=pack_counts([len(change.blocks) for change in changes]),
            blocks=pack_hashes([block for change in changes for block in change.blocks]),
        )
        if changes:
            self.digest = self.digest + batch_digest(batch) & BATCHES_MASK
            batch = replace(batch, digest=self.digest)
        return batch

    def sent(self, payload: bytes) -> None:
        """The last batch, encoded."""
        self._sent.append(payload)
        self._bytes += len(payload)
        while self._bytes > MAX_REPEATED:
            self._bytes -= len(self._sent.popleft())

    def skip(self) -> None:
        """Changes without a listener: they are in dumps alone."""
        self.sequence += 1
        self._sent.clear()
        self._bytes = 0

    def since(self, after: int) -> tuple[list[bytes], bool] | None:
        """(the batches that follow that number, as many as an answer holds; whether there are more). None if they can't
        be repeated any more, or never were."""
        missing = self.sequence - after
        if not 0 <= missing <= len(self._sent):
            return None
        batches: list[bytes] = []
        size = 0
        for at in range(len(self._sent) - missing, len(self._sent)):
            size += len(self._sent[at])
            if batches and (size > ANSWER or len(batches) == MAX_BATCHES):
                return batches, True
            batches.append(self._sent[at])
        return batches, False

    def __repr__(self) -> str:
        return f"<Announcements of {self.id!r}: {self.sequence}, {len(self._sent)} to be repeated>"


class Dumps:
    """The dumps that other pickers are taking, each under the number of its session."""

    def __init__(self) -> None:
        self._sessions: dict[int, tuple[Iterator[PrefixPiece], float]] = {}
        """(the pieces that are left, when one was last asked for)."""
        self._last = 0

    def have_room(self, now: float) -> bool:
        """Whether another one may begin, also because an abandoned one has ended."""
        self._sessions = {number: taken for number, taken in self._sessions.items() if now - taken[1] <= IDLE}
        return len(self._sessions) < MAX_DUMPS

    def begin(self, dump: Callable[[int], Iterator[PrefixPiece]], now: float) -> int:
        """The session of a dump, which is made for it."""
        self._last += 1
        self._sessions[self._last] = dump(self._last), now
        return self._last

    def next(self, session: int, now: float) -> PrefixPiece | None:
        """The next piece of a dump; None if it has ended."""
        taken = self._sessions.pop(session, None)
        if taken is None:
            return None
        pieces, _ = taken
        piece = next(pieces, None)
        if piece is not None and piece.more:
            self._sessions[session] = pieces, now
        return piece

    def __repr__(self) -> str:
        return f"<Dumps: {len(self._sessions)}>"


def parts(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """The changes in their order, as many in each part as a batch can have."""
    part: list[Change] = []
    room = MAX_BLOCKS
    for change in changes:
        for start in range(0, len(change.blocks), MAX_BLOCKS):
            piece = change._replace(blocks=change.blocks[start : start + MAX_BLOCKS])
            if len(piece.blocks) > room:
                yield part
                part, room = [], MAX_BLOCKS
            part.append(piece)
            room -= len(piece.blocks)
    if part:
        yield part


def dump(
    index: LruPrefixIndex, announcements: Announcements, origins: Sequence[PrefixOrigin], known: int, session: int
) -> Iterator[PrefixPiece]:
    """What servers hold on the word of some pickers, piece by piece. `origins` are the pickers behind the marks, with
    the numbers of their batches that are applied by now; `known` has the bits of the marks that count. What changes
    meanwhile may be in it or not."""
    rows: list[tuple[int, int]] = []
    blocks: list[int] = []
    marks: list[int] = []

    def piece(*, more: bool) -> PrefixPiece:
        return PrefixPiece(
            run=announcements.run,
            sequence=announcements.sequence,
            more=more,
            session=session,
            origins=list(origins),
            servers=pack_hashes([server for server, _ in rows]),
            counts=pack_counts([count for _, count in rows]),
            blocks=pack_hashes(blocks),
            marks=pack_hashes(np.array(marks, np.uint64)),
        )

    room = MAX_BLOCKS
    for server in index.servers():
        held, states = index.states(server)
        start = 0
        while start < len(held):
            some, its_states = held[start : start + room], states[start : start + room]
            start += room
            room -= len(some)
            its_marks = [mark & known for mark in marks_of(its_states)]
            if not all(its_marks):
                some = [block for block, mark in zip(some, its_marks, strict=True) if mark]
                its_marks = list(filter(None, its_marks))
            if some:
                rows.append((server, len(some)))
                blocks += some
                marks += its_marks
            if not room:
                yield piece(more=True)
                rows, blocks, marks, room = [], [], [], MAX_BLOCKS
    yield piece(more=False)
