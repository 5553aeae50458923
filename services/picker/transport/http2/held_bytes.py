"""What a connection holds beside its messages: parts of frames and header blocks, frames that wait for their turn, and
bytes that wait for its socket. They count in the budget of all bodies."""

from collections.abc import Callable

from services.picker.body_buffer import BodyBuffer, MemoryBudget

UNCOUNTED = 4 * 2**10
"""Bytes of a connection that don't count."""
PATIENCE = 1.0
"""Seconds after which a connection may be dropped for what it holds: a frame has come and been read by then, and with a
connection all of its requests end."""


class HeldBytes:
    """The bytes of one connection. `drop` is called when they have to make room for others."""

    __slots__ = ("_buffer", "_memory", "drop", "size")

    def __init__(self, memory: MemoryBudget, drop: Callable[[], None]) -> None:
        self._memory, self.drop = memory, drop
        self.size = 0
        """Those that count."""
        self._buffer: BodyBuffer | None = None
        """They as a body that may be dropped."""

    def update(self, size: int, age: float) -> None:
        """There are so many bytes now; the oldest have been there for `age` seconds."""
        if size <= UNCOUNTED:
            size = 0
        droppable = size > 0 and age > PATIENCE
        if droppable != (self._buffer is not None):
            self._release()
            self._buffer = BodyBuffer(self._memory, droppable=True) if droppable else None
        more, self.size = size - self.size, size
        if self._buffer is None:
            self._memory.used += more
        else:
            self._buffer.account(more, self._dropped)

    def make_room(self) -> None:
        """Where the budget is used up, drop what has been held for long, the costliest first."""
        if self._buffer is not None and not self._memory.has_room(0) and self._buffer is not None:
            self._buffer.drop()

    def _release(self) -> None:
        if self._buffer is None:
            self._memory.used -= self.size
        else:
            self._buffer.clear()
        self.size = 0

    def _dropped(self) -> None:
        self._buffer, self.size = None, 0
        self.drop()

    def __repr__(self) -> str:
        return f"<HeldBytes {self.size}{'' if self._buffer is None else ', droppable'}>"
