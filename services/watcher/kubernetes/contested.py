"""Conditions that somebody takes away, or changes, as often as they are written: written more and more seldom.

Whoever writes a whole status takes from it what others have applied, without a conflict. Two who don't give in would
write for ever, each as fast as it can.
"""

from collections.abc import Collection, Hashable

from msgspec import Struct

FREE = 3
"""How often the same is written without a pause: a resource that is applied anew may lose its conditions with good
reason."""
FIRST = 1.0
LONGEST = 300.0
"""Seconds of the first pause, which doubles, and of the longest. What stayed for longer than that isn't contested."""


class _Written(Struct, frozen=True):
    what: Hashable
    times: int
    at: float


class Contested:
    """What was written of each resource last, and how often."""

    def __init__(self) -> None:
        self._written: dict[str, _Written] = {}

    def due(self, uid: str, what: Hashable) -> float:
        """When this may be written again, in seconds of the clock."""
        last = self._written.get(uid)
        if last is None or last.what != what or last.times <= FREE:
            return 0.0
        return last.at + min(LONGEST, FIRST * 2.0 ** (last.times - FREE - 1))

    def wrote(self, uid: str, what: Hashable, now: float) -> bool:
        """Note it; whether from now on it is written more seldom."""
        last = self._written.get(uid)
        again = last is not None and last.what == what and now - last.at <= LONGEST
        times = last.times + 1 if last is not None and again else 1
        self._written[uid] = _Written(what, times, now)
        return times == FREE + 1

    def keep(self, uids: Collection[str]) -> None:
        """Forget all others."""
        self._written = {uid: one for uid, one in self._written.items() if uid in uids}

    def state(self) -> dict[str, int]:
        """By uid: how often the same was written, of those that are held back."""
        return {uid: one.times for uid, one in self._written.items() if one.times > FREE}

    def __repr__(self) -> str:
        return f"<Contested {len(self.state())} of {len(self._written)}>"
