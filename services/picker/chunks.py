"""The pieces of a body until it is whole. They are joined once, at the end: joining as they come costs their square.

Whoever sends a body chooses how it is cut, and a `bytes` object of one byte takes forty: small pieces are put together
in between, so that what is held is about what was sent.
"""

import sys
from collections.abc import Callable

GATHERED = 1024
"""Pieces that are put together at a time."""
SPARE = 8
"""The part of what all may hold that is made free at a time."""


class Held:
    """Bytes that all bodies hold together, and how many they may: each is bounded by itself, but not their number.

    Bodies that aren't complete give way when there is no more room: whoever sends them decides how long they stay. The
    one goes first that has cost most, its bytes times the seconds for which they have been held. A body of the usual
    size, which is complete within a second, goes on however many large ones never end.
    """

    __slots__ = ("_clock", "_since", "_unfinished", "most", "size")

    def __init__(self, most: int = sys.maxsize, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.most = most
        self.size = 0
        self._clock = clock
        self._since: dict[Chunks, float] = {}
        """When each of those began that give way."""
        self._unfinished = 0
        """Bytes that they hold."""

    def takes(self, more: int) -> bool:
        """Whether there is room for so many bytes, if need be where unfinished bodies have been dropped."""
        missing = self.size + more - self.most
        return missing <= 0 or (missing <= self._unfinished and self._make_room(missing))

    def grow(self, chunks: "Chunks", more: int) -> None:
        """These hold so many bytes more, and give way."""
        self._unfinished += more
        if chunks not in self._since:
            self._since[chunks] = self._clock()

    def keep(self, chunks: "Chunks") -> None:
        """These don't give way any more."""
        if self._since.pop(chunks, None) is not None:
            self._unfinished -= chunks.size

    def _make_room(self, missing: int) -> bool:
        """Drop bodies for so many bytes, and for some more: finding them takes time, for the next piece as well."""
        now, since = self._clock(), self._since
        left = self.size - max(missing, min(self.most // SPARE, self._unfinished // 2))
        for chunks in sorted(since, key=lambda one: one.size * (1.0 + now - since[one]), reverse=True):
            if self.size <= left:
                break
            chunks.drop()
        return True

    def __repr__(self) -> str:
        return f"<Held {self.size} of {self.most} bytes>"


class Chunks:
    """Pieces in their order; they count in what is `held` together. Those that give way may be dropped until they are
    whole."""

    __slots__ = ("_all", "_gives_way", "_joined", "_pieces", "dropped", "size")

    def __init__(self, held: Held | None = None, *, gives_way: bool = False) -> None:
        self._all = Held() if held is None else held
        self._gives_way = gives_way
        self._pieces: list[bytes] = []
        self._joined = 0
        """How many at the beginning are put together already."""
        self.size = 0
        """Bytes of all pieces."""
        self.dropped = False
        """Whether they had to make room."""

    def takes(self, more: int = 0) -> bool:
        """Whether there is room for so many bytes more of them, if need be where unfinished bodies have been dropped:
        which these may be, too."""
        return not self.dropped and self._all.takes(more) and not self.dropped

    def add(self, piece: bytes) -> None:
        size = len(piece)
        self.size += size
        self._all.size += size
        self._pieces.append(piece)
        if self._gives_way:
            self._all.grow(self, size)
        if len(self._pieces) - self._joined > GATHERED:
            self._pieces[self._joined :] = [b"".join(self._pieces[self._joined :])]
            self._joined += 1

    def whole(self) -> bytes:
        """All of it, which stays here."""
        if self._gives_way:
            self._all.keep(self)
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
            self._joined = 1
        return self._pieces[0] if self._pieces else b""

    def take(self) -> bytes:
        """All of it; nothing is left."""
        pieces = self._pieces
        self.clear()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def drop(self) -> None:
        """Let go what there is, for others."""
        self.clear()
        self.dropped = True

    def clear(self) -> None:
        if self._gives_way:
            self._all.keep(self)
        self._all.size -= self.size
        self._pieces = []
        self._joined = self.size = 0

    def __len__(self) -> int:
        """How many objects hold it."""
        return len(self._pieces)

    def __repr__(self) -> str:
        return f"<Chunks {self.size} bytes in {len(self)}>"
