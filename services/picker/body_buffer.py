"""Buffers the pieces of a body, within a budget that all bodies share.

The pieces are joined once, at the end: joining each as it comes takes quadratic time. The sender chooses how a body is
cut, and a `bytes` object of one byte takes forty. So small pieces are joined in between, and the memory stays close to
what was sent.
"""

import sys

GATHERED = 1024
"""Pieces that are joined at a time."""


class MemoryBudget:
    """Bytes that all bodies take together, and their limit. One body has a limit of its own; their number has none."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int = sys.maxsize) -> None:
        self.limit = limit
        self.used = 0

    def has_room(self, more: int) -> bool:
        """Whether there is room for so many bytes."""
        return self.used + more <= self.limit

    def __repr__(self) -> str:
        return f"<MemoryBudget {self.used} of {self.limit} bytes>"


class BodyBuffer:
    """The pieces of one body, in order. They count in the budget."""

    __slots__ = ("_budget", "_joined", "_pieces", "size")

    def __init__(self, budget: MemoryBudget | None = None) -> None:
        self._budget = MemoryBudget() if budget is None else budget
        self._pieces: list[bytes] = []
        self._joined = 0
        """How many at the beginning are joined already."""
        self.size = 0
        """Bytes of all pieces."""

    @property
    def full(self) -> bool:
        """Whether the bodies of the budget take more than its limit."""
        return self._budget.used > self._budget.limit

    def add(self, piece: bytes) -> None:
        size = len(piece)
        self.size += size
        self._budget.used += size
        self._pieces.append(piece)
        if len(self._pieces) - self._joined > GATHERED:
            self._pieces[self._joined :] = [b"".join(self._pieces[self._joined :])]
            self._joined += 1

    def whole(self) -> bytes:
        """All of it, which stays here."""
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
            self._joined = 1
        return self._pieces[0] if self._pieces else b""

    def take(self) -> bytes:
        """All of it; nothing is left."""
        pieces = self._pieces
        self.clear()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def clear(self) -> None:
        self._budget.used -= self.size
        self._pieces = []
        self._joined = self.size = 0

    def __len__(self) -> int:
        """How many objects hold it."""
        return len(self._pieces)

    def __repr__(self) -> str:
        return f"<BodyBuffer {self.size} bytes in {len(self)}>"
