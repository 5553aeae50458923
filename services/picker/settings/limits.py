"""How much a picker's view keeps of what others publish: settings of the picker."""

from msgspec import Struct

from shared.limits import LIMITS


class ViewLimits(Struct, frozen=True, kw_only=True):
    """The limits of one view."""

    model_names: int = 20_000
    """Model names of all rewrites, and InferenceModels, that take effect, the oldest resources' first: every change
    goes through all of them."""
    peer_rows: int = 2_000_000
    """Rows of all peers' load tables: two hundred pickers of ten thousand endpoints have as many."""
    runs: int = LIMITS.max_runs
    """Runs of peers whose base delays are known."""
    attributes: int = 512
    """Attributes of numbers that no plugin reads; of others, an eighth as many."""
    attribute_bytes: int = 64 * 2**20
    """Bytes of memory of values that aren't numbers and that no plugin reads; of those that plugins read, twice as
    many; of numbers, a quarter as many, because each frame copies them."""
    prefix_blocks: int = 8 * 2**20
    """Blocks of prompts that endpoints hold, all together: each takes some 160 bytes."""

    @property
    def number_bytes(self) -> int:
        """Bytes of memory of numbers that no plugin reads, with their sample times."""
        return self.attribute_bytes // 4

    @property
    def read_bytes(self) -> int:
        """Bytes of memory of values that aren't numbers and that plugins read, with the index of names: 10 000
        endpoints with 20 names of 40 characters take a quarter by default, or three quarters if no two have a name in
        common."""
        return self.attribute_bytes * 2


DEFAULT_VIEW_LIMITS = ViewLimits()
"""The defaults."""


class Sharing(Struct, frozen=True, kw_only=True):
    """How a picker shares its prefix placements with the others."""

    enabled: bool = True
    interval: float = 0.02
    """Seconds between two batches."""
    wait: float = 5.0
    """Seconds for which a starting picker isn't ready, at most, because it waits for the others' placements."""


DEFAULT_SHARING = Sharing()
