"""Indexes which endpoints probably hold which prompt prefixes in their KV caches: the blocks of prompts sent there.

A prompt is cut into blocks of bytes, each hashed with its predecessor's hash, so that one hash stands for a whole
prefix. The index maps a hash to the set of endpoints that hold it, as an int with a bit an endpoint: walking a prompt
is one dictionary look-up and one AND a block, however many endpoints there are. Each endpoint's blocks are bounded by a
least-recently-used order in which a prompt's first blocks are the youngest, because without them the rest is worth
nothing.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Protocol

import numpy as np
import xxhash

from services.picker.state.histogram import Histogram
from services.picker.state.layout import Floats, Layout, Rows

RETIRED_SWEEP = 2000
"""Blocks of endpoints that have gone which one `sweep` removes: about a millisecond's work."""
RATIOS = tuple(tenth / 10 for tenth in range(11))
"""Upper bounds of shares of a prompt; the Go original's."""
SIZES = (0.0, *(float(1 << power) for power in range(4, 17)))
"""Upper bounds of bytes; the Go original's."""
FEW = 8
"""Up to so many bits are taken out of a set one by one; unpacking all of them is cheaper beyond."""


def block_hashes(prompt: bytes, block_bytes: int, seed: bytes, max_blocks: int) -> list[int]:
    """Chained xxh3-64 hashes of the prompt's blocks; a last partial block counts as one.

    `seed` tells apart what must not share a cache (target model, cache salt, block size). No more than `max_blocks`
    blocks, 0 meaning no limit. An empty prompt has none.
    """
    digest = xxhash.xxh3_64_intdigest
    end = min(len(prompt), block_bytes * max_blocks) if max_blocks else len(prompt)
    last = digest(seed)
    hashes: list[int] = []
    for start in range(0, end, block_bytes):
        last = digest(prompt[start : start + block_bytes], last)
        hashes.append(last)
    return hashes


class PrefixHits:
    """Metrics of how much of each prompt its endpoint already held. They outlive configurations, as the index does."""

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


class PrefixIndex(Protocol):
    """Which endpoints hold which blocks, by hashes that stand for whole prefixes. Whoever knows fills it: a producer
    with its placements, a reader of the servers' KV events, another picker. Each `add` stands until its `forget`."""

    def match(self, hashes: Sequence[int]) -> Floats:
        """For each endpoint of the layout, how many of the leading blocks it holds. Shape: (endpoints,)."""
        ...

    def add(self, endpoint_id: str, hashes: Sequence[int], capacity: int) -> None:
        """The endpoint holds these blocks, or is about to; beyond `capacity` those that it used least recently are
        forgotten. Nothing for an endpoint that isn't in the layout."""
        ...

    def forget(self, endpoint_id: str, hashes: Sequence[int]) -> None:
        """What one `add` said isn't so, or is so no longer. The endpoint keeps the blocks that other ones stand behind.
        Blocks that it isn't known to hold are ignored."""
        ...


class LruPrefixIndex(PrefixIndex):
    """Block hash → endpoints, with a bound of blocks an endpoint. An endpoint's bit is its slot's."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._slots: dict[str, int] = {}
        self._blocks: list[dict[int, int]] = []
        """Each slot's hashes, least recently used first, and how many `add`s stand behind each."""
        self._free: list[int] = []
        self._retired: list[int] = []
        self._layout = Layout()
        self._row_of_slot: list[int] = []
        self._rows: Rows | None = None
        """The same as an array, made when many are looked up at once."""
        self._live = 0
        """The bits of the layout's endpoints."""

    def relayout(self, layout: Layout) -> None:
        """Endpoints that have gone, or are another server under the same id, lose their blocks."""
        _, there = layout.moved_from(self._layout)
        gone = np.ones(len(self._layout), np.bool_)
        gone[there] = False
        for row in np.flatnonzero(gone).tolist():
            slot = self._slots.pop(self._layout.endpoints[row].id, None)
            if slot is not None:
                self._retired.append(slot)
                self._live ^= 1 << slot
        self._layout = layout
        self._rows = None
        for name, slot in self._slots.items():
            self._row_of_slot[slot] = layout.index[name]

    def match(self, hashes: Sequence[int]) -> Floats:
        counts = np.zeros(len(self._layout))
        alive = self._live
        holders = self._holders.get
        depth = 0
        for block in hashes:
            still = alive & holders(block, 0)
            if still != alive:
                if depth:
                    self._fill(counts, alive ^ still, depth)
                alive = still
                if not alive:
                    return counts
            depth += 1
        if depth:
            self._fill(counts, alive, depth)
        return counts

    def add(self, endpoint_id: str, hashes: Sequence[int], capacity: int) -> None:
        slot = self._slot(endpoint_id)
        if slot is None:
            return
        bit = 1 << slot
        blocks = self._blocks[slot]
        holders = self._holders
        for block in reversed(hashes):
            if block in blocks:
                blocks[block] = blocks.pop(block) + 1
            else:
                blocks[block] = 1
                holders[block] = holders.get(block, 0) | bit
        if len(blocks) > capacity:
            # found in one go: looking for a dict's first key again and again costs more each time
            oldest = list(islice(blocks, len(blocks) - capacity))
            for block in oldest:
                del blocks[block]
            self._drop(oldest, bit)

    def forget(self, endpoint_id: str, hashes: Sequence[int]) -> None:
        slot = self._slots.get(endpoint_id)
        if slot is None:
            return
        blocks = self._blocks[slot]
        gone: list[int] = []
        for block in hashes:
            count = blocks.get(block, 0)
            if count > 1:
                blocks[block] = count - 1
            elif count:
                del blocks[block]
                gone.append(block)
        self._drop(gone, 1 << slot)

    def sweep(self, budget: int = RETIRED_SWEEP) -> None:
        """Remove up to `budget` blocks of endpoints that have gone; called from time to time."""
        while self._retired and budget > 0:
            slot = self._retired[-1]
            blocks = self._blocks[slot]
            bit = 1 << slot
            gone = [blocks.popitem()[0] for _ in range(min(budget, len(blocks)))]
            self._drop(gone, bit)
            budget -= len(gone)
            if not blocks:
                self._free.append(self._retired.pop())

    @property
    def held(self) -> int:
        """Blocks of all endpoints together; one that two of them hold counts twice."""
        return sum(len(self._blocks[slot]) for slot in self._slots.values())

    def blocks_of(self, endpoint_id: str) -> int:
        """How many blocks the endpoint is thought to hold."""
        slot = self._slots.get(endpoint_id)
        return 0 if slot is None else len(self._blocks[slot])

    def __len__(self) -> int:
        return len(self._holders)

    def _slot(self, endpoint_id: str) -> int | None:
        slot = self._slots.get(endpoint_id)
        if slot is None:
            row = self._layout.index.get(endpoint_id)
            if row is None:
                return None  # it has gone since the pick
            if self._free:
                slot = self._free.pop()
            else:
                slot = len(self._blocks)
                self._blocks.append({})
                self._row_of_slot.append(0)
            self._slots[endpoint_id] = slot
            self._row_of_slot[slot] = row
            self._rows = None
            self._live |= 1 << slot
        return slot

    def _drop(self, gone: Sequence[int], bit: int) -> None:
        """The slot with this bit holds these blocks no longer."""
        holders = self._holders
        for block in gone:
            left = holders[block] ^ bit
            if left:
                holders[block] = left
            else:
                del holders[block]

    def _fill(self, counts: Floats, bits: int, depth: int) -> None:
        """Put the depth where the slots whose bits are set have their rows."""
        if bits.bit_count() <= FEW:
            while bits:
                low = bits & -bits
                counts[self._row_of_slot[low.bit_length() - 1]] = depth
                bits ^= low
        else:
            packed = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), np.uint8)
            slots = np.flatnonzero(np.unpackbits(packed, bitorder="little"))
            if self._rows is None:
                self._rows = np.array(self._row_of_slot, np.intp)
            counts[self._rows[slots]] = depth

    def __repr__(self) -> str:
        return f"<LruPrefixIndex {len(self._holders)} blocks, {len(self._slots)} endpoints>"
