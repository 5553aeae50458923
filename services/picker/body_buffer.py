"""Buffers the pieces of a body, within a budget that all bodies share.

The pieces are joined once, at the end: joining each as it comes takes quadratic time. The sender chooses how a body is
cut, and a `bytes` object of one byte takes forty. So small pieces are joined in between, and the memory stays close to
what was sent.
"""

import sys
from collections.abc import Callable

GATHERED = 128
"""Pieces that are joined at a time."""
SPARE = 16
"""The share of the limit that is freed at a time: 12 ms when it is all headers."""


class MemoryBudget:
    """Bytes that all bodies take together, with long headers, and their limit. One body has a limit of its own; their
    number has none.

    When no room is left, unfinished bodies are dropped: their senders decide how long they stay. The costliest goes
    first: its bytes times the seconds for which they have been held. So a body of the usual size, complete within a
    second, passes however many large ones never end.
    """

    __slots__ = ("_clock", "_since", "_unfinished", "limit", "used")

    def __init__(self, limit: int = sys.maxsize, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.limit = limit
        self.used = 0
        self._clock = clock
        self._since: dict[BodyBuffer, float] = {}
        """When each unfinished body began."""
        self._unfinished = 0
        """Bytes of unfinished bodies."""

    def has_room(self, more: int) -> bool:
        """Whether there is room for so many bytes, if need be where unfinished bodies have been dropped."""
        missing = self.used + more - self.limit
        return missing <= 0 or (missing <= self._unfinished and self._make_room(missing))

    def part(self, limit: int) -> "MemoryBudget":
        """A budget of part of these bytes, so that its bodies leave room for the others."""
        return _Part(self, limit)

    def grow(self, body: "BodyBuffer", more: int) -> None:
        """An unfinished body has grown by so many bytes."""
        self._unfinished += more
        if body not in self._since:
            self._since[body] = self._clock()

    def keep(self, body: "BodyBuffer") -> None:
        """The body is finished: it is not dropped."""
        if self._since.pop(body, None) is not None:
            self._unfinished -= body.held

    def _make_room(self, missing: int) -> bool:
        """Drop bodies for so many bytes, and for some more: finding them takes time, for the next piece as well."""
        now, since = self._clock(), self._since
        left = self.used - max(missing, min(self.limit // SPARE, self._unfinished // 2))
        for body in sorted(since, key=lambda body: body.held * (1.0 + now - since[body]), reverse=True):
            if self.used <= left:
                break
            body.drop()
        return True

    def __repr__(self) -> str:
        return f"<MemoryBudget {self.used} of {self.limit} bytes>"


class _Part(MemoryBudget):
    """A part of a budget. Its bodies aren't dropped."""

    __slots__ = ("_own", "_whole")

    def __init__(self, whole: MemoryBudget, limit: int) -> None:
        self._whole, self._own = whole, 0
        super().__init__(limit)

    @property
    def used(self) -> int:
        return self._own

    @used.setter
    def used(self, used: int) -> None:
        self._whole.used += used - self._own
        self._own = used

    def has_room(self, more: int) -> bool:
        return super().has_room(more) and self._whole.has_room(more)


class BodyBuffer:
    """The pieces of one body, in order. They count in the budget. A droppable body may be dropped until it is whole."""

    __slots__ = ("_accounted", "_budget", "_droppable", "_joined", "_on_drop", "_pieces", "dropped", "size")

    def __init__(self, budget: MemoryBudget | None = None, *, droppable: bool = False) -> None:
        self._budget = MemoryBudget() if budget is None else budget
        self._droppable = droppable
        self._pieces: list[bytes] = []
        self._joined = 0
        """How many at the beginning are joined already."""
        self.size = 0
        """Bytes of all pieces."""
        self._accounted = 0
        self._on_drop: Callable[[], None] | None = None
        self.dropped = False
        """Whether the body had to make room for others."""

    @property
    def held(self) -> int:
        """Bytes of all pieces, and of what is kept beside them."""
        return self.size + self._accounted

    def account(self, more: int, on_drop: Callable[[], None]) -> None:
        """Count bytes of something that is kept as long as the body, such as the headers. `on_drop` releases it when
        the body is dropped."""
        self._accounted += more
        self._budget.used += more
        self._on_drop = on_drop
        if self._droppable:
            self._budget.grow(self, more)

    def has_room(self, more: int = 0) -> bool:
        """Whether there is room for so many more bytes. Unfinished bodies are dropped if need be, this one, too."""
        return not self.dropped and self._budget.has_room(more) and not self.dropped

    def add(self, piece: bytes, *, last: bool = False) -> None:
        """Take a piece; the `last` one makes the body whole."""
        size = len(piece)
        if last:
            self._finish()
        self.size += size
        self._budget.used += size
        self._pieces.append(piece)
        if self._droppable:
            self._budget.grow(self, size)
        if len(self._pieces) - self._joined > GATHERED:
            self._pieces[self._joined :] = [b"".join(self._pieces[self._joined :])]
            self._joined += 1

    def whole(self) -> bytes:
        """The whole body. The buffer keeps it."""
        self._finish()
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
            self._joined = 1
        return self._pieces[0] if self._pieces else b""

    def take(self) -> bytes:
        """The whole body. The buffer is empty afterwards."""
        pieces = self._pieces
        self.clear()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def drop(self) -> None:
        """Release all pieces, to make room for other bodies."""
        on_drop = self._on_drop
        self.clear()
        self.dropped = True
        if on_drop is not None:
            on_drop()

    def clear(self) -> None:
        self._finish()
        if not (self._pieces or self._accounted):
            return
        self._budget.used -= self.size + self._accounted
        self._pieces = []
        self._joined = self.size = self._accounted = 0
        self._on_drop = None

    def _finish(self) -> None:
        """No more of it is dropped for others."""
        if self._droppable:
            self._droppable = False
            self._budget.keep(self)

    def __len__(self) -> int:
        """How many objects hold it."""
        return len(self._pieces)

    def __repr__(self) -> str:
        return f"<BodyBuffer {self.size} bytes in {len(self)}>"
