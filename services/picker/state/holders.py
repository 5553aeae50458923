"""Block hash → the endpoints that hold the block, as an int with a bit an endpoint.

The table is split into shards by the hash. A dict copies itself when it grows; one of a million blocks takes 50 ms for
that, its shards take a millisecond each.
"""

from collections.abc import Iterable, Sequence
from sys import getsizeof

SHARDS = 64
SMALL = 240
"""Bits of a set whose memory is less than that of its block's other parts."""
LAST = SHARDS - 1
"""A block's shard is `shards[block & LAST]`."""


class Holders:
    """The table. Every block in it has a holder. `bits` has the bit of each endpoint: the same object for all blocks
    that the endpoint holds alone."""

    def __init__(self, bits: Sequence[int]) -> None:
        self._bits = bits
        self.shared_bytes = 0
        """Memory of the large sets of several endpoints: each has a bit for every endpoint of the pool."""
        self.shards: tuple[dict[int, int], ...] = tuple({} for _ in range(SHARDS))
        self._gets = tuple(shard.get for shard in self.shards)

    def depths(self, hashes: Sequence[int], alive: int) -> list[tuple[int, int]]:
        """(bits, how many of the leading blocks these endpoints hold) for the endpoints of `alive` that hold any."""
        found: list[tuple[int, int]] = []
        gets, mask = self._gets, LAST
        last = -1
        for depth, block in enumerate(hashes):
            held = gets[block & mask](block, 0)
            if held != last:  # mostly those that hold a block hold the next one
                last = held
                still = alive & held
                if still != alive:
                    if depth:
                        found.append((alive ^ still, depth))
                    alive = still
                    if not alive:
                        return found
        if hashes:
            found.append((alive, len(hashes)))
        return found

    def add(self, blocks: Iterable[int], bit: int) -> None:
        """The endpoint with this bit now holds the blocks."""
        shards = self.shards
        for block in blocks:
            shard = shards[block & LAST]
            if (held := shard.setdefault(block, bit)) is not bit:
                both = shard[block] = held | bit
                self.shared_bytes += _memory(both) - _memory(held)

    def drop(self, blocks: Iterable[int], bit: int) -> None:
        """The endpoint with this bit no longer holds these blocks."""
        shards = self.shards
        for block in blocks:
            shard = shards[block & LAST]
            held = shard.pop(block)
            if held != bit:
                rest = held ^ bit
                if rest.bit_count() == 1:
                    rest = self._bits[rest.bit_length() - 1]
                self.shared_bytes += _memory(rest) - _memory(held)
                shard[block] = rest

    def __len__(self) -> int:
        return sum(map(len, self.shards))

    def __repr__(self) -> str:
        return f"<Holders of {len(self)} blocks>"


def _memory(bits: int) -> int:
    """Bytes of a large set; 0 of one that is small, or is an endpoint's own bit."""
    return getsizeof(bits) if bits.bit_length() > SMALL and bits.bit_count() > 1 else 0
