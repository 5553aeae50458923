"""What the prefix index knows of a block of an endpoint, in an int: from the lowest bit, how many of this picker's
placements stand behind it, the generation in which it was used last, and marks of the pickers that have announced it.
"""

from collections.abc import Callable, Iterable, Iterator

OWN_MASK = (1 << 32) - 1
GENERATION_SHIFT = 32
GENERATION_MASK = 0xFF << GENERATION_SHIFT
MARKS_SHIFT = 40
MAX_MARKS = 64
ALL_BUT_GENERATION = (1 << MARKS_SHIFT + MAX_MARKS) - 1 ^ GENERATION_MASK
MARKS = tuple(1 << (MARKS_SHIFT + bit) for bit in range(MAX_MARKS))
"""One for each picker that announces blocks."""
ANNOUNCED, FORMER = MARKS[:2]
"""The mark of this picker, and that of pickers that can't take back what they have announced."""


def marks_of(states: Iterable[int]) -> list[int]:
    """The marks in states of blocks: bit i is `MARKS[i]`."""
    return [state >> MARKS_SHIFT for state in states]


def hold(states: dict[int, int], blocks: Iterable[int], marks: Iterable[int], generation: int) -> list[int]:
    """Mark blocks, the oldest first, as held in this generation; returns the new ones."""
    new: list[int] = []
    last = first = 0
    for block, mark in zip(blocks, marks, strict=False):
        state = states.pop(block, 0)
        if state:
            states[block] = state & ALL_BUT_GENERATION | generation | mark
        else:
            if mark != last:  # equal states are one object
                last, first = mark, mark | generation
            states[block] = first
            new.append(block)
    return new


class Conversions:
    """Replacements of marks that are under way, one after the other."""

    def __init__(self) -> None:
        self._left: list[tuple[Iterator[int], Callable[[], None]]] = []

    def add(self, steps: Iterator[int], done: Callable[[], None]) -> None:
        """`steps` says how many blocks each has looked at; after the last one, `done` is called."""
        self._left.append((steps, done))

    def advance(self, budget: int) -> None:
        """Look at about so many blocks."""
        while self._left and budget > 0:
            steps, done = self._left[0]
            seen = next(steps, None)
            if seen is None:
                del self._left[0]
                done()
            else:
                budget -= seen

    def __repr__(self) -> str:
        return f"<Conversions: {len(self._left)}>"
