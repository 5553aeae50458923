"""Prefixes of prompts: how a prompt becomes hashes.

A prompt is cut into blocks of bytes, each hashed with its predecessor's hash, so that one hash stands for a whole
prefix.
"""

from struct import iter_unpack

import xxhash

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
