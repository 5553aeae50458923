"""Metrics of how much of each prompt its endpoint already held."""

from services.picker.state.histogram import Histogram

RATIOS = tuple(tenth / 10 for tenth in range(11))
"""Upper bounds of shares of a prompt; the Go original's."""
SIZES = (0.0, *(float(1 << power) for power in range(4, 17)))
"""Upper bounds of bytes; the Go original's."""


class PrefixHits:
    """They outlive configurations, as the index does."""

    def __init__(self) -> None:
        self.plugin = ""
        """The plugin that used the index last."""
        self.ratios = Histogram(RATIOS)
        self.bytes = Histogram(SIZES)

    def add(self, plugin: str, matched: int, blocks: int, block_bytes: int) -> None:
        """Count a prompt of `blocks` blocks, at least 1, of which the chosen endpoint holds the first `matched`."""
        self.plugin = plugin
        self.ratios.observe(matched / blocks)
        self.bytes.observe(matched * block_bytes)
