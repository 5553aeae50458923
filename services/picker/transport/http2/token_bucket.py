"""How often something may happen: a token bucket."""


class TokenBucket:
    """So many times a second, and ten seconds' worth at once. Time is monotonic seconds."""

    __slots__ = ("_left", "_most", "_per_second", "_since")

    BURST = 10.0
    """Seconds whose worth may be spent at once."""

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second = per_second
        self._left = self._most = per_second * self.BURST
        self._since = now

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Whether it may happen once more; something dearer counts as several."""
        self._left = min(self._left + (now - self._since) * self._per_second, self._most)
        self._since = now
        if self._left < cost:
            return False
        self._left -= cost
        return True

    def __repr__(self) -> str:
        return f"<TokenBucket {self._left:.0f} of {self._most:.0f}>"
