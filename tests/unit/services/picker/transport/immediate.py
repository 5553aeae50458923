"""What handlers have in common whose requests never wait."""

from collections.abc import Callable, Sequence


def nothing() -> None:
    """Nobody waits."""


class Immediate:
    """Part of a handler of which every answer is brought by a message."""

    closed = False
    waiting = ready = False
    handed_back = ""
    wake: Callable[[], None] = staticmethod(nothing)

    def outbox(self) -> Sequence[bytes]:
        return ()
