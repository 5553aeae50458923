"""Prefixes of prompts, and who holds them: how a prompt becomes hashes, and what an index of them does.

A prompt is cut into blocks of bytes, each hashed with its predecessor's hash, so that one hash stands for a whole
prefix.
"""

from collections.abc import Sequence
from struct import iter_unpack
from typing import Protocol

import xxhash

from services.picker.state.layout import Floats

HASHING = 1
"""The version of `block_hashes`, its seeds, and the bytes of prompts that parsers make. Pickers of one version share
their placements, so whatever changes a hash changes this."""
DEFAULT_CAPACITY = 31_250
"""Blocks; the Go original's `lruCapacityPerServer`."""


def block_hashes(prompt: bytes, block_bytes: int, seed: bytes, max_blocks: int) -> list[int]:
    """Chained xxh3-64 hashes of the prompt's blocks; a last partial block counts as one.

    `seed` tells apart what must not share a cache (target model, cache salt, block size). No more than `max_blocks`
    blocks, 0 meaning no limit. An empty prompt has none.
    """
    digest = xxhash.xxh3_64_intdigest
    end = min(len(prompt), block_bytes * max_blocks) if max_blocks else len(prompt)
    whole = end - end % block_bytes
    last = digest(seed)
    blocks = iter_unpack(f"{block_bytes}s", memoryview(prompt)[:whole])
    hashes = [last := digest(block, last) for (block,) in blocks]
    if whole < end:
        hashes.append(digest(prompt[whole:end], last))
    return hashes


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
