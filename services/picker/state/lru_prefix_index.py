"""Indexes which endpoints probably hold which prompt prefixes in their KV caches: the blocks of prompts sent there.

The index maps a block's hash to the set of endpoints that hold it, as an int with a bit an endpoint: walking a prompt
is one dictionary look-up a block, however many endpoints there are. Each endpoint's blocks are bounded by a
least-recently-used order in which a prompt's first blocks are the youngest, because without them the rest is worth
nothing.

Several pickers fill one index between them. Each block of an endpoint knows how many of this picker's placements stand
behind it, and which pickers have announced it (`services.picker.state.prefix_peers`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np

from services.picker.settings.limits import DEFAULT_VIEW_LIMITS
from services.picker.state.block_states import (
    ALL_BUT_GENERATION,
    ANNOUNCED,
    GENERATION_MASK,
    GENERATION_SHIFT,
    MARKS_SHIFT,
    OWN_MASK,
    Conversions,
    hold,
)
from services.picker.state.holders import Holders
from services.picker.state.layout import Floats, Layout, Rows
from services.picker.state.prefix import DEFAULT_CAPACITY
from shared.bus.columns import server_hash

RETIRED_SWEEP = 2000
"""Blocks of endpoints that have gone which one `sweep` removes: about a millisecond's work."""
SWEEP, RECENT = 0.25, 5.0
"""Seconds between two sweeps, and for which new blocks count as recent."""
CONVERTED_SWEEP = 10_000
"""Blocks at which one `sweep` looks for marks that are to be replaced; most have others."""
CONVERSION_STEP = 1000
SPARE = 128
"""A full endpoint drops a part of so many beyond what is too much: to find a dict's first key is to pass over all that
were removed before it, which with many blocks takes longer than the rest of a decision."""
FEW = 8
"""Up to so many bits are taken out of a set one by one; unpacking all of them is cheaper beyond."""
GENERATIONS = 4
"""A block in use is announced again whenever so many parts of its endpoint's blocks have been replaced: peers would
forget it otherwise."""
MAX_UNKNOWN = UNKNOWN_BLOCKS = 1000
"""Servers that peers name and the layout doesn't have, whose placements are kept for a while; blocks of each."""
BLOCK = 160
"""Bytes of memory of a block that one endpoint holds, about."""
UNKNOWN_SWEEPS = 40
"""Sweeps until those are dropped: ten seconds."""


class Change(NamedTuple):
    """Changes that are not published yet."""

    server: int
    """`server_hash` of the endpoint."""
    withdrawn: bool
    """The endpoint doesn't hold the blocks after all."""
    blocks: list[int]
    """The oldest first."""


class LruPrefixIndex:
    """Block hash → endpoints, with a bound of blocks an endpoint. An endpoint's bit is its slot's.

    Each `add` stands until its `forget`.
    """

    def __init__(self, max_blocks: int = DEFAULT_VIEW_LIMITS.prefix_blocks) -> None:
        """Endpoints share `max_blocks` evenly: none holds more than its part. The memory of what several hold makes it
        smaller."""
        self._max_blocks = self._part = max_blocks
        self.changes: list[Change] | None = None
        """What this picker has placed and withdrawn; None while nobody wants to know."""
        self.capacity_of: Callable[[int], int] = lambda _row: DEFAULT_CAPACITY
        """Blocks that the endpoint in a row holds; for blocks that peers announce."""
        self._slots: dict[str, int] = {}
        self._servers: dict[int, int] = {}
        """Slots by server, those without a row included."""
        self._server_of_slot: list[int] = []
        self._unknown: dict[int, int] = {}
        """Servers that aren't in the layout, and how many sweeps they stay."""
        self._blocks: list[dict[int, int]] = []
        """Each slot's hashes, least recently used first, and their states."""
        self._bits: list[int] = []
        """Each slot's bit."""
        self._holders = Holders(self._bits)
        self._generations: list[int] = []
        self._replaced: list[int] = []
        """Blocks that are new since a slot's generation began."""
        self._capacities: dict[int, int] = {}
        """Blocks that slots hold, as asked since the last sweep or layout."""
        self._free: list[int] = []
        self._retired: list[int] = []
        self._oversized: list[int] = []
        """Slots that may hold more than `_part`, which has become smaller."""
        self._conversions = Conversions()
        self._layout = Layout()
        self._ids: dict[int, str] = {}
        """The layout's endpoints by server."""
        self.recent: Floats = np.zeros(0)
        """Blocks that were new to each endpoint of the layout in the last `RECENT` seconds or so."""
        self._row_of_slot: list[int] = []
        """-1 for those without a row."""
        self._rows: Rows | None = None
        """The same as an array, made when many are looked up at once."""
        self._live_slots = 0
        """The bits of the layout's endpoints."""

    def relayout(self, layout: Layout) -> None:
        """Endpoints that have gone, or are another server under the same id, lose their blocks."""
        here, there = layout.moved_from(self._layout)
        gone, new = np.ones(len(self._layout), np.bool_), np.ones(len(layout), np.bool_)
        gone[there], new[here] = False, False
        for row in np.flatnonzero(gone).tolist():
            endpoint = self._layout.endpoints[row]
            self._ids.pop(server_hash(endpoint), None)
            slot = self._slots.pop(endpoint.id, None)
            if slot is not None:
                del self._servers[self._server_of_slot[slot]]
                self._retired.append(slot)
                self._live_slots ^= 1 << slot
        recent, self.recent = self.recent, np.zeros(len(layout))
        self.recent[here] = recent[there]
        self._layout = layout
        self._rows = None
        self._capacities.clear()
        for name, slot in self._slots.items():
            self._row_of_slot[slot] = layout.index[name]
        self._update_share()
        for row in np.flatnonzero(new).tolist():
            endpoint = layout.endpoints[row]
            server = server_hash(endpoint)
            self._ids[server] = endpoint.id
            if self._unknown.pop(server, None) is not None:
                self._place(self._servers[server], endpoint.id, row)

    def match(self, hashes: Sequence[int]) -> Floats:
        """For each endpoint of the layout, how many of the leading blocks it holds. Shape: (endpoints,)."""
        counts = np.zeros(len(self._layout))
        for bits, depth in self._holders.depths(hashes, self._live_slots):
            self._fill(counts, bits, depth)
        return counts

    def add(self, endpoint_id: str, hashes: Sequence[int], capacity: int) -> None:
        """The endpoint holds these blocks, or is about to; beyond `capacity` those that it used least recently are
        forgotten. Nothing for an endpoint that isn't in the layout."""
        slot = self._slot(endpoint_id)
        if slot is None:
            return
        blocks, generation = self._blocks[slot], self._generations[slot]
        first = ANNOUNCED | generation | 1
        new: list[int] = []
        renewed: list[int] = []
        if blocks.keys().isdisjoint(hashes):
            new = list(reversed(hashes))
            blocks |= dict.fromkeys(new, first)
        else:
            pop, mask, rest_mask = blocks.pop, GENERATION_MASK, ALL_BUT_GENERATION
            announced = ANNOUNCED | generation
            rest = reversed(hashes)
            for block in rest:
                state = pop(block, 0)
                if not state:
                    blocks[block] = first
                    new.append(block)
                elif state & mask != generation:
                    blocks[block] = (state & rest_mask | announced) + 1
                    renewed.append(block)
                else:
                    blocks[block] = state + 1
                    break  # in use in this generation, and so are those before it, which every use of it has used
            for block in rest:
                state = pop(block, 0)
                blocks[block] = state + 1 if state else first
                if not state:
                    new.append(block)
        self._holders.add(new, self._bits[slot])
        if new or len(blocks) > capacity:
            self._on_added(slot, len(new), capacity)
        if self.changes is not None and (new or renewed):
            self.changes.append(Change(self._server_of_slot[slot], False, new + renewed))

    def forget(self, endpoint_id: str, hashes: Sequence[int]) -> None:
        """Take back one `add`. The endpoint keeps the blocks that other placements stand behind. Blocks that it isn't
        known to hold are ignored."""
        slot = self._slots.get(endpoint_id)
        if slot is None:
            return
        blocks = self._blocks[slot]
        gone: list[int] = []
        withdrawn: list[int] = []
        for block in hashes:
            state = blocks.get(block, 0)
            if not state & OWN_MASK:
                continue
            state -= 1
            if not state & OWN_MASK and state & ANNOUNCED:
                state ^= ANNOUNCED
                withdrawn.append(block)
            if state & OWN_MASK or state >> MARKS_SHIFT:
                blocks[block] = state
            else:
                del blocks[block]
                gone.append(block)
        self._holders.drop(gone, 1 << slot)
        if withdrawn and self.changes is not None:
            self.changes.append(Change(self._server_of_slot[slot], True, withdrawn))

    # What peers announce

    def hold(self, server: int, blocks: Sequence[int], marks: int | Iterable[int]) -> None:
        """Pickers, by their marks, have announced that a server holds these blocks; the oldest first. A single mark is
        that of all blocks."""
        slot = self._slot_of(server)
        if slot is None:
            return
        states, generation = self._blocks[slot], self._generations[slot]
        new: Sequence[int]
        if isinstance(marks, int) and states.keys().isdisjoint(blocks):
            new = blocks
            states |= dict.fromkeys(blocks, marks | generation)
        else:
            new = hold(states, blocks, repeat(marks) if isinstance(marks, int) else marks, generation)
        if new:
            self._holders.add(new, self._bits[slot])
            self._on_added(slot, len(new), self._capacities.get(slot) or self._capacity(slot))

    def withdraw(self, server: int, blocks: Iterable[int], mark: int) -> None:
        """A picker takes back what it has announced. Blocks stay that others have announced, and those behind which
        this picker stands, which it then announces."""
        slot = self._servers.get(server)
        if slot is not None:
            self._unmark(slot, blocks, mark, 0)

    def convert(self, mark: int, into: int, done: Callable[[], None]) -> None:
        """Replace an unused mark by another one or none (0), step by step; then call `done`."""
        self._conversions.add(self._converted(mark, into), done)

    def servers(self) -> list[int]:
        """The layout's servers of which blocks are known."""
        return [server for server in self._servers if server not in self._unknown]

    def states(self, server: int) -> tuple[list[int], list[int]]:
        """(blocks that a server holds, the oldest first; their states, whose marks `marks_of` takes out)."""
        slot = self._servers.get(server)
        return ([], []) if slot is None else (list(self._blocks[slot]), list(self._blocks[slot].values()))

    def sweep(self, budget: int = RETIRED_SWEEP) -> None:
        """Remove up to `budget` blocks of endpoints that have gone, and go on with conversions; called from time to
        time."""
        self._capacities.clear()
        self.recent *= 1.0 - SWEEP / RECENT
        for server in list(self._unknown):
            self._unknown[server] -= 1
            if not self._unknown[server]:
                del self._unknown[server]
                self._retired.append(self._servers.pop(server))
        budget = self._drop_retired(budget)
        if not self._oversized:
            self._update_share()
        while self._oversized and budget > 0:
            budget -= self._drop_oldest(self._oversized[-1], self._part, budget) + 1
            if budget > 0:
                self._oversized.pop()
        self._conversions.advance(CONVERTED_SWEEP)

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
            slot = self._new_slot(server_hash(self._layout.endpoints[row]))
            self._place(slot, endpoint_id, row)
        return slot

    def _slot_of(self, server: int) -> int | None:
        """The slot of a server, which the layout may not have yet; None if there are too many of those."""
        slot = self._servers.get(server)
        if slot is None:
            if server in self._ids:
                return self._slot(self._ids[server])
            if len(self._unknown) >= MAX_UNKNOWN:
                return None
            slot = self._new_slot(server)
            self._unknown[server] = UNKNOWN_SWEEPS
        return slot

    def _capacity(self, slot: int) -> int:
        unknown = self._server_of_slot[slot] in self._unknown
        capacity = UNKNOWN_BLOCKS if unknown else max(self.capacity_of(self._row_of_slot[slot]), 1)
        self._capacities[slot] = capacity
        return capacity

    def _new_slot(self, server: int) -> int:
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self._blocks)
            self._blocks.append({})
            self._bits.append(1 << slot)
            for column in (self._server_of_slot, self._generations, self._replaced, self._row_of_slot):
                column.append(0)
        self._generations[slot] = self._replaced[slot] = 0
        self._row_of_slot[slot] = -1
        self._server_of_slot[slot] = server
        self._servers[server] = slot
        return slot

    def _place(self, slot: int, endpoint_id: str, row: int) -> None:
        """The slot is that of an endpoint in this row of the layout."""
        self._slots[endpoint_id] = slot
        self._row_of_slot[slot] = row
        self._rows = None
        self._live_slots |= 1 << slot

    def _fair_share(self) -> int:
        """What each endpoint may hold now."""
        room = self._max_blocks - self._holders.shared_bytes // BLOCK
        return max(room // max(len(self._layout), 1), 1)

    def _update_share(self) -> None:
        """Find out which endpoints may hold too much, should their part be smaller than before."""
        former, self._part = self._part, self._fair_share()
        if self._part < former:
            self._oversized = list(self._slots.values())

    def _on_added(self, slot: int, count: int, capacity: int) -> None:
        """So many blocks are new: those are forgotten that are too many, and the next generation may begin."""
        blocks = self._blocks[slot]
        capacity = min(capacity, self._fair_share())
        self._replaced[slot] += count
        if (row := self._row_of_slot[slot]) >= 0:
            self.recent[row] = self.recent.item(row) + count
        if self._replaced[slot] * GENERATIONS > capacity:
            self._replaced[slot] = 0
            self._generations[slot] = self._generations[slot] + (1 << GENERATION_SHIFT) & GENERATION_MASK
        if len(blocks) > capacity:
            self._drop_oldest(slot, capacity - capacity // SPARE, count + RETIRED_SWEEP)
        if self._retired:
            self._drop_retired(count)  # so that there are never more blocks than before, however endpoints come and go

    def _drop_oldest(self, slot: int, capacity: int, limit: int) -> int:
        """Forget what a slot holds beyond its capacity, at most so many blocks; how many they were."""
        blocks = self._blocks[slot]
        # found in one go: looking for a dict's first key again and again costs more each time
        oldest = list(islice(blocks, min(max(len(blocks) - capacity, 0), limit)))
        for block in oldest:
            del blocks[block]
        self._holders.drop(oldest, 1 << slot)
        return len(oldest)

    def _drop_retired(self, budget: int) -> int:
        """Remove up to `budget` blocks of endpoints that have gone; what is left of the budget."""
        while self._retired and budget > 0:
            slot = self._retired[-1]
            blocks = self._blocks[slot]
            gone = [blocks.popitem()[0] for _ in range(min(budget, len(blocks)))]
            self._holders.drop(gone, 1 << slot)
            budget -= len(gone)
            if not blocks:
                self._free.append(self._retired.pop())
        return budget

    def _unmark(self, slot: int, blocks: Iterable[int], mark: int, into: int) -> None:
        """Replace a mark of these blocks by another one or none."""
        states = self._blocks[slot]
        gone: list[int] = []
        renewed: list[int] = []
        for block in blocks:
            state = states.get(block, 0)
            if not state & mark:
                continue
            state = state ^ mark | into
            if not state >> MARKS_SHIFT:
                if not state & OWN_MASK:
                    del states[block]
                    gone.append(block)
                    continue
                state |= ANNOUNCED
                renewed.append(block)
            states[block] = state
        self._holders.drop(gone, 1 << slot)
        if renewed and self.changes is not None:
            self.changes.append(Change(self._server_of_slot[slot], False, renewed))

    def _converted(self, mark: int, into: int) -> Iterator[int]:
        """Replace a mark everywhere, in steps; how many blocks each step has looked at."""
        for server in list(self._servers):
            blocks, _ = self.states(server)
            for start in range(0, len(blocks), CONVERSION_STEP):
                step, slot = blocks[start : start + CONVERSION_STEP], self._servers.get(server)
                if slot is not None:
                    self._unmark(slot, step, mark, into)
                yield len(step)

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
