"""Whether evictions make room on a stage: measured after each, as requests differ in what they take.

Saturation that is made up of requests that nobody may evict stays, however many others end. So evictions pause if all
that run would be too few, as much as the last ones lowered the saturation. Each pause is twice as long as the one
before, up to a maximum: a measurement may be wrong because others took the room at once.
"""

from math import inf

PAUSE = 1.0
"""Seconds of the first pause."""
MAX_PAUSE = 30.0
"""Seconds of the longest."""


class Feedback:
    """The effect of the last evictions on one stage, until there is room."""

    def __init__(self) -> None:
        self._victims = 0
        """Whose effect isn't measured yet."""
        self._before = self._least = 0.0
        """The saturation when they went, and the least since."""
        self._fall = 0.0
        """By how much each of the last victims has lowered the saturation."""
        self._pause, self._until = 0.0, -inf

    def evicted(self, victims: int, saturation: float) -> None:
        """So many requests are being evicted at this saturation."""
        self._victims, self._before, self._least = victims, saturation, saturation

    def observe(self, saturation: float) -> None:
        """The saturation before what has become free is taken again."""
        self._least = min(self._least, saturation)

    def futile(self, saturation: float, ceiling: float, running: int, now: float) -> bool:
        """Whether evicting all running requests wouldn't bring the saturation below the ceiling. To be asked when
        earlier evictions show."""
        if self._victims:
            self._fall, self._victims = (self._before - self._least) / self._victims, 0
            if self._least < ceiling or self._fall * running > self._least - ceiling:
                self._pause, self._until = 0.0, -inf
            else:
                self._pause = min(max(2 * self._pause, PAUSE), MAX_PAUSE)
                self._until = now + self._pause
        return now < self._until and self._fall * running <= saturation - ceiling

    def __repr__(self) -> str:
        return f"<Feedback {self._fall:.2g} each, paused until {self._until:.1f}>"
