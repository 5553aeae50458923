"""How much of prompts the endpoints that got them held already, counted for metrics."""

from bisect import bisect_left

RATIOS = tuple(tenth / 10 for tenth in range(11))
"""Upper bounds of shares of a prompt; the Go original's."""
SIZES = (0.0, *(float(1 << power) for power in range(4, 17)))
"""Upper bounds of bytes; the Go original's."""


class PrefixHits:
    """Look-ups of prompts, by the chosen endpoint's part. It outlives configurations, as the index does."""

    __slots__ = ("bytes", "plugin", "ratio_sum", "ratios", "sizes")

    def __init__(self) -> None:
        self.plugin = ""
        """Who looked last."""
        self.ratios = [0] * (len(RATIOS) + 1)
        """How many are within each of `RATIOS`, and beyond none of the bounds before; the last is above all."""
        self.ratio_sum = 0.0
        self.sizes = [0] * (len(SIZES) + 1)
        self.bytes = 0

    def add(self, plugin: str, matched: int, blocks: int, block_bytes: int) -> None:
        """Of a prompt of so many blocks, more than none, the chosen endpoint holds the first `matched`."""
        self.plugin = plugin
        ratio = matched / blocks
        self.ratios[bisect_left(RATIOS, ratio)] += 1
        self.ratio_sum += ratio
        held = matched * block_bytes
        self.sizes[bisect_left(SIZES, held)] += 1
        self.bytes += held

    def __repr__(self) -> str:
        return f"<PrefixHits {sum(self.ratios)} prompts, {self.bytes} bytes>"
