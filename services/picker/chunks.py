"""The pieces of a body until it is whole. They are joined once, at the end: joining as they come costs their square.

Whoever sends a body chooses how it is cut, and a `bytes` object of one byte takes forty: small pieces are put together
in between, so that what is held is about what was sent.
"""

GATHERED = 1024
"""Pieces that are put together at a time."""


class Chunks:
    """Pieces in their order."""

    __slots__ = ("_joined", "_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._joined = 0
        """How many at the beginning are put together already."""
        self.size = 0
        """Bytes of all pieces."""

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        self._pieces.append(piece)
        if len(self._pieces) - self._joined > GATHERED:
            self._pieces[self._joined :] = [b"".join(self._pieces[self._joined :])]
            self._joined += 1

    def take(self) -> bytes:
        """All of it; nothing is left."""
        pieces, self._pieces = self._pieces, []
        self._joined = self.size = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def clear(self) -> None:
        self._pieces = []
        self._joined = self.size = 0

    def __len__(self) -> int:
        """How many objects hold it."""
        return len(self._pieces)

    def __repr__(self) -> str:
        return f"<Chunks {self.size} bytes in {len(self)}>"
