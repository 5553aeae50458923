"""`burst-prefix-cache-producer`: places requests with the same prompt that come in one burst on the same endpoint.

No cache has the prompt of a burst yet, so without it load would spread the burst, and every server would compute the
prompt. The requests of a window wait for its end; the first that is scheduled then places them all.
"""

import asyncio
from collections.abc import Awaitable, Iterator
from heapq import heappop, heappush
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct

from services.picker.request import BYTES_PER_TOKEN, Request, prompt_tokens
from services.picker.scheduling.cycle import PREFIX_MATCH, Cycle, PrefixMatch
from services.picker.scheduling.interfaces import Producer
from services.picker.scheduling.producers.approx_prefix import MIN_BLOCK
from services.picker.state.prefix import block_hashes
from shared.plugin import Stability

DEFAULT_BLOCKS = 2048
"""Blocks that are looked at without `maxPrefixTokensToMatch`, as with approx-prefix-cache-producer."""
MARGIN = 0.4
"""Seconds that a request may wait beyond the window."""


class BurstPrefixParameters(Struct, frozen=True, rename="camel"):
    """The window, and which requests belong together."""

    window_duration_ms: Annotated[int, Meta(gt=0, le=10_000)] = 100
    max_per_replica: Annotated[int, Meta(ge=-1)] = -1
    """Requests of one prompt on one endpoint; -1 and 0: no limit."""
    block_size_tokens: Annotated[int, Meta(gt=0)] = 64
    max_prefix_tokens_to_match: Annotated[int, Meta(ge=0)] = 0
    min_colocate_blocks: Annotated[int, Meta(ge=0)] = 0
    """Leading blocks that different prompts have to share; 0: only equal prompts belong together."""
    max_batch_size: Annotated[int, Meta(gt=0, le=1000)] = 1000
    balance_by: Literal["requests", "tokens"] = "requests"


class _Member:
    """A request of a batch. It may wait for long, so it keeps two of its prompt's hashes, not all."""

    __slots__ = ("batch", "blocks", "endpoint", "shared", "weight", "whole")

    def __init__(self, batch: "_Batch", hashes: list[int], shared_blocks: int, weight: float) -> None:
        self.batch, self.weight = batch, weight
        self.blocks = len(hashes)
        self.whole = hashes[-1]
        """The hash of the whole prompt."""
        self.shared = hashes[shared_blocks - 1] if 0 < shared_blocks <= len(hashes) else None
        """The hash of the leading blocks that prompts have to share; None where the prompt is shorter, or none has to
        be shared."""
        self.endpoint: str | None = None
        """The id of its endpoint, when it has been placed; None where it belongs to no other request."""


class _Loads:
    """What a batch has placed on each endpoint, by the endpoint's place among the candidates. Endpoints without load
    cost nothing: they are used in their order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._loads: list[float] = []
        """Of the first endpoints; the others have none."""
        self._least: list[tuple[float, int]] = []
        """A heap of (load, place): those that aren't taken, and former ones."""
        self._taken: set[int] = set()
        """The places that a group has, and may not use again before the others."""

    def release(self) -> None:
        """Every place may be used again."""
        for place in self._taken:
            heappush(self._least, (self._loads[place], place))
        self._taken.clear()

    def takes(self, place: int, most: float) -> bool:
        """Whether a place that has been used can be used now, and has less than so much load."""
        return place not in self._taken and self._loads[place] < most

    def least(self) -> int:
        """The place with the least load that isn't taken, the first of equal ones. There has to be one."""
        least, loads = self._least, self._loads
        while least and (least[0][1] in self._taken or least[0][0] != loads[least[0][1]]):
            heappop(least)
        if len(loads) < self._size and (not least or least[0][0] > 0.0):
            loads.append(0.0)
            return len(loads) - 1
        return least[0][1]

    def add(self, place: int, weight: float) -> None:
        """Take a place."""
        self._loads[place] += weight
        self._taken.add(place)


class _Batch:
    """The requests of one window."""

    def __init__(self, parameters: BurstPrefixParameters) -> None:
        self._parameters = parameters
        self.members: list[_Member] = []
        self.closed = asyncio.Event()
        self._placed = False

    def place(self, cycle: Cycle) -> None:
        """Place all members on this request's candidates, once."""
        if self._placed or not len(cycle.candidates):
            return
        self._placed = True
        limits, rows = self._parameters, cycle.candidates
        loads = _Loads(len(rows))
        fair = sum(member.weight for member in self.members) / len(rows)
        holders: dict[int, int] = {}
        """By the hash of the leading blocks that prompts have to share: the place that has them."""
        for group in self._units():
            shared = group[0].shared
            most = limits.max_per_replica if limits.max_per_replica > 0 else len(group)
            for piece, start in enumerate(range(0, len(group), most)):
                if piece % len(rows) == 0:
                    loads.release()
                members = group[start : start + most]
                held = None if shared is None or piece >= len(rows) else holders.get(shared)
                place = held if held is not None and loads.takes(held, fair) else loads.least()
                loads.add(place, sum(member.weight for member in members))
                if shared is not None:
                    holders.setdefault(shared, place)
                id = cycle.layout.endpoints[rows.item(place)].id
                for member in members:
                    member.endpoint = id
        self.members = []  # each still has the batch

    def _units(self) -> Iterator[list[_Member]]:
        """What is placed together: equal prompts, then single ones that share their beginning; long ones first."""
        groups: dict[int, list[_Member]] = {}
        for member in self.members:
            groups.setdefault(member.whole, []).append(member)
        longest_first = sorted(groups.values(), key=lambda group: -group[0].blocks)
        yield from (group for group in longest_first if len(group) > 1)
        count: dict[int, int] = {}
        for group in longest_first:
            if (shared := group[0].shared) is not None:
                count[shared] = count.get(shared, 0) + len(group)
        for group in longest_first:
            shared = group[0].shared
            if len(group) == 1 and shared is not None and count[shared] > 1:
                yield group


class BurstPrefixProducer(Producer):
    """A full match on the endpoint of a request's group, none elsewhere. A request without a group matches nowhere."""

    TYPE = "burst-prefix-cache-producer"
    STABILITY = Stability.ALPHA
    BOUNDED = True
    PRODUCES = (PREFIX_MATCH,)
    Parameters = BurstPrefixParameters
    parameters: BurstPrefixParameters

    def __init__(self, name: str, parameters: BurstPrefixParameters | None = None) -> None:
        super().__init__(name, parameters)
        self._window = self.parameters.window_duration_ms / 1000.0
        self._block = max(self.parameters.block_size_tokens, MIN_BLOCK)
        self.BUDGET = self._window + MARGIN
        self._batch: _Batch | None = None
        self.bursts = 0
        self.placed = 0

    def prepare(self, request: Request) -> Awaitable[Any] | None:
        hashes = self._hashes(request)
        return self._wait(hashes, request) if hashes else None

    def produce(self, cycle: Cycle) -> None:
        member = cycle.prepared.get(self)
        matched = np.zeros(len(cycle.layout))
        total = 0
        if isinstance(member, _Member):
            member.batch.place(cycle)
            total = member.blocks
            row = None if member.endpoint is None else cycle.layout.index.get(member.endpoint)
            if row is not None:
                matched[row] = total
                self.placed += 1
        cycle.put(PREFIX_MATCH, PrefixMatch(matched, total, self._block))

    def state(self) -> dict[str, Any]:
        return {"bursts": self.bursts, "placed": self.placed}

    def _hashes(self, request: Request) -> list[int]:
        limits, content = self.parameters, request.content
        seed = f"{content.model}\x00{content.cache_salt}".encode()
        block, most = self._block, limits.max_prefix_tokens_to_match
        blocks = max(most // block, 1) if most else DEFAULT_BLOCKS
        return block_hashes(content.prompt, block * BYTES_PER_TOKEN, seed, blocks)

    async def _wait(self, hashes: list[int], request: Request) -> _Member:
        batch = self._batch
        if batch is None:
            batch = self._batch = _Batch(self.parameters)
            asyncio.get_running_loop().call_later(self._window, self._close, batch)
        weight = 1.0 if self.parameters.balance_by == "requests" else float(prompt_tokens(request))
        member = _Member(batch, hashes, self.parameters.min_colocate_blocks, weight)
        batch.members.append(member)
        if len(batch.members) >= self.parameters.max_batch_size:
            self._close(batch)
        try:
            await batch.closed.wait()
        except asyncio.CancelledError:  # its client has gone
            if member in batch.members:
                batch.members.remove(member)
            raise
        return member

    def _close(self, batch: _Batch) -> None:
        if not batch.closed.is_set():
            self.bursts += 1
            batch.closed.set()
        if self._batch is batch:
            self._batch = None
