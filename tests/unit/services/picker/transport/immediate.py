"""What handlers have in common whose requests never wait."""

from collections.abc import Callable, Sequence


def nothing() -> None:
    """Nobody waits."""


class Immediate:
    """Part of a handler of which every answer is brought by a message."""

    closed = False
    waiting = ready = incomplete = False
    held = 0
    handed_back = ""
    wake: Callable[[], None] = staticmethod(nothing)

    @property
    def idle(self) -> bool:
        return not (self.closed or self.waiting or self.ready or self.handed_back)

    def outbox(self) -> Sequence[bytes]:
        return ()
