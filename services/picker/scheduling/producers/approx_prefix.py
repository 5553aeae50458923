"""`approx-prefix-cache-producer`: remembers where prompts went, and so who probably holds a prompt's prefix.

Prompts are cut into blocks of estimated tokens, four bytes each. With `autoTune` the block is that of most servers, the
median of what they report, so that every request is cut alike and a few servers that are wrong change nothing; and how
many blocks a server holds is what it reports itself.
"""

from array import array
from typing import Annotated, Any

from msgspec import Meta, Struct

from services.picker.request import BYTES_PER_TOKEN
from services.picker.scheduling.cycle import PREFIX_MATCH, Cycle, PrefixMatch
from services.picker.scheduling.interfaces import Placement, Producer
from services.picker.state.prefix import DEFAULT_CAPACITY, block_hashes
from services.picker.state.view import View
from shared.attributes import CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS, AttributeKey
from shared.bus.columns import server_hash
from shared.plugin import Input

DEFAULT_BLOCK = 16
"""Tokens."""
MIN_BLOCK = 64
"""Tokens: smaller blocks cost more than they tell (the reference's floor)."""
MAX_BLOCKS = 2**18
"""Of an endpoint, whatever it reports: 16 million tokens in the smallest blocks, more than the caches of eight of
today's GPUs. The index takes some 40 MB to remember as many."""
_HASHES: AttributeKey[list[int]] = AttributeKey("PromptBlocks", "approx-prefix-cache-producer", list)


def in_tokens(size: int) -> int:
    """Tokens of a block whose size is in bytes, as older generations wrote it."""
    return -(-size // BYTES_PER_TOKEN)


def former_size(name: str, size: int, tokens: int | None, where: str = "") -> str:
    """What to write instead of a block's size in bytes; `tokens` is `blockSizeTokens` where that is given too."""
    if not size or tokens:
        return f"{name} is deprecated, and has no effect{' beside blockSizeTokens' if tokens else ''}; leave it out"
    return f"{name} is deprecated; write blockSizeTokens: {in_tokens(size)} (tokens, not bytes){where}"


class ApproxPrefixParameters(Struct, frozen=True, rename="camel"):
    """The size of a block, and how many are looked at and remembered."""

    auto_tune: bool = True
    block_size_tokens: Annotated[int, Meta(ge=0)] = DEFAULT_BLOCK
    block_size: Annotated[int, Meta(ge=0)] = 0
    """Bytes; an older generation's `blockSizeTokens`, which goes before it."""
    hash_block_size: Annotated[int, Meta(ge=0)] = 0
    """Bytes; a still older one's."""
    max_prefix_tokens_to_match: Annotated[int, Meta(ge=0)] = 131_072
    max_prefix_blocks_to_match: Annotated[int, Meta(ge=0)] = 2048
    """Counts only when `maxPrefixTokensToMatch` is 0; both 0 means no limit."""
    lru_capacity_per_server: Annotated[int, Meta(gt=0)] = DEFAULT_CAPACITY
    capacity_factor: Annotated[float, Meta(ge=0.1, le=10)] = 1.0
    """How many times the blocks of a server's cache are remembered."""

    def __post_init__(self) -> None:
        if not self.auto_tune and not self.tokens:
            raise ValueError("blockSizeTokens is 0; without autoTune it must be positive")

    @property
    def tokens(self) -> int:
        """The configured block in tokens."""
        former = self.block_size or self.hash_block_size
        return in_tokens(former) if former and self.block_size_tokens == DEFAULT_BLOCK else self.block_size_tokens


class ApproxPrefixProducer(Producer):
    """Looks a prompt up before the pick, and adds it to the index afterwards: at once for the first choice, so that the
    next request sees it, and for the endpoint that served instead when that is known. When nobody served, it is taken
    back."""

    TYPE = "approx-prefix-cache-producer"
    Parameters = ApproxPrefixParameters
    PRODUCES = (PREFIX_MATCH,)
    BOUNDED = True
    parameters: ApproxPrefixParameters

    def __init__(self, name: str, parameters: ApproxPrefixParameters | None = None) -> None:
        super().__init__(name, parameters)
        self._auto_tune = self.parameters.auto_tune
        self._block = self.parameters.tokens
        self.lookups = 0
        self.blocks = 0
        self.hits = 0

    @classmethod
    def consumes(cls, parameters: ApproxPrefixParameters) -> tuple[Input, ...]:
        keys = (CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS) if parameters.auto_tune else ()
        return tuple(Input(key, optional=True) for key in keys)

    @classmethod
    def deprecations(cls, parameters: ApproxPrefixParameters) -> list[str]:
        former = {"blockSize": parameters.block_size, "hashBlockSize": parameters.hash_block_size}
        tokens = parameters.block_size_tokens if parameters.block_size_tokens != DEFAULT_BLOCK else None
        return [former_size(name, size, tokens) for name, size in former.items() if size]

    def produce(self, cycle: Cycle) -> None:
        block = self._block_tokens(cycle.view)
        content = cycle.request.content
        seed = f"{cycle.model}\x00{content.cache_salt}\x00{block}".encode()
        hashes = block_hashes(content.prompt, block * BYTES_PER_TOKEN, seed, self._max_blocks(block))
        matched = cycle.view.prefixes.match(hashes)
        cycle.put(_HASHES, hashes)
        cycle.put(PREFIX_MATCH, PrefixMatch(matched, len(hashes), block))

    def picked(self, cycle: Cycle, row: int) -> Placement | None:
        hashes, match = cycle.get(_HASHES), cycle.get(PREFIX_MATCH)
        if not hashes or match is None:
            return None
        matched, block = int(match.matched.item(row)), match.block_tokens
        self.lookups += 1
        self.blocks += match.total
        self.hits += matched
        endpoint, view = cycle.layout.endpoints[row], cycle.view
        first = endpoint.id
        index = view.prefixes
        view.prefix_hits.add(self.name, matched, match.total, block * BYTES_PER_TOKEN)
        index.add(first, hashes, self._capacity(view, row, block))

        kept = array("Q", hashes)  # until the response begins, in a fifth of the list's memory

        def served_by(id: str | None) -> None:
            row = None if id is None else view.layout.index.get(id)
            placed = view.layout.index.get(first)
            if placed is not None and server_hash(view.layout.endpoints[placed]) == server_hash(endpoint):
                index.forget(first, kept)  # another server under its id has other placements
            if id is not None and row is not None:
                index.add(id, kept, self._capacity(view, row, block))

        return served_by

    @property
    def hashing(self) -> str:
        """What the hashes of prompts depend on, apart from what their servers report."""
        return f"autoTune {self._auto_tune}, {self._block} tokens"

    def capacity(self, view: View, row: int) -> int:
        """Blocks that the endpoint in this row holds."""
        return self._capacity(view, row, self._block_tokens(view))

    def state(self) -> dict[str, Any]:
        return {"lookups": self.lookups, "blocks": self.blocks, "hits": self.hits}

    def _block_tokens(self, view: View) -> int:
        block = 0
        if self._auto_tune:
            block = int(view.columns.numbers(CACHE_BLOCK_SIZE.wire).median)
        return max(block or self._block, MIN_BLOCK)

    def _max_blocks(self, block: int) -> int:
        tokens = self.parameters.max_prefix_tokens_to_match
        return max(tokens // block, 1) if tokens else self.parameters.max_prefix_blocks_to_match

    def _capacity(self, view: View, row: int, block: int) -> int:
        """Blocks that the endpoint's cache holds: as many of ours as its own tokens make, within reason."""
        if self.parameters.auto_tune:
            columns = view.columns
            blocks = columns.numbers(CACHE_NUM_BLOCKS.wire).values.item(row)
            size = columns.numbers(CACHE_BLOCK_SIZE.wire).values.item(row)
            if blocks > 0 and size > 0:
                return min(max(int(blocks * size * self.parameters.capacity_factor) // block, 1), MAX_BLOCKS)
        return max(int(self.parameters.lru_capacity_per_server * self.parameters.capacity_factor), 1)
