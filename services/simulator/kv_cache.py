"""KV cache blocks and the prefix cache in them.

A block is in one of four places: free, held privately (not full yet, or computed but unknown), held under its hash by
one or more requests, or cached: full, held by nobody, found again by its hash until somebody needs the room. Only
numbers and hashes are kept, no block ids: two requests that compute the same block share it from then on.

Requests give their blocks back last block first, so that the cache loses the ends of prefixes before their beginnings,
as vLLM's does.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class KvCache:
    """Blocks of a server's KV cache."""

    def __init__(self, total: int, *, caching: bool = True) -> None:
        self.total = total
        self.caching = caching
        self.evictions = 0
        self._private = 0
        self._held: dict[int, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def used(self) -> int:
        """Blocks that some request holds."""
        return self._private + len(self._held)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds and whose content can be found again."""
        return len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that a request can be given: free ones, and cached ones by eviction."""
        return self.total - self.used

    @property
    def free(self) -> int:
        """Blocks without content: requests can be given them without an eviction."""
        return self.available - len(self._cached)

    @property
    def usage(self) -> float:
        """Share of the blocks that are held, 0 to 1. Cached ones don't count: they are given away when needed."""
        return self.used / self.total

    def match(self, hashes: Iterable[int]) -> int:
        """How many of these blocks, from the first on, are there."""
        count = 0
        if self.caching:
            for block in hashes:
                if block not in self._held and block not in self._cached:
                    break
                count += 1
        return count

    def allocate(self, hits: Sequence[int], new: int) -> bool:
        """Take the blocks that `match` found, and `new` private ones. All or, when there isn't room, nothing."""
        revived = sum(1 for block in hits if block not in self._held)
        if revived + new > self.available:
            return False
        for block in hits:
            self._hold(block)
        return self.grow(new)

    def grow(self, new: int) -> bool:
        """Take `new` private blocks, evicting cached ones that were used longest ago; False when there isn't room."""
        if new > self.available:
            return False
        self._private += new
        while self.free < 0:
            self._cached.popitem(last=False)
            self.evictions += 1
        return True

    def publish(self, hashes: Iterable[int]) -> None:
        """Private blocks are full and computed: from here on they are held under their hashes."""
        for block in hashes:
            self._private -= 1
            self._hold(block)

    def release(self, hashes: Sequence[int], private: int) -> None:
        """Give back blocks that were held under `hashes`, in order of the prefix, and `private` ones."""
        self._private -= private
        for block in reversed(hashes):
            holders = self._held[block] - 1
            if holders:
                self._held[block] = holders
            else:
                del self._held[block]
                if self.caching:
                    self._cached[block] = None

    def clear(self) -> None:
        """Forget every block that nobody holds."""
        self._cached.clear()

    def _hold(self, block: int) -> None:
        self._cached.pop(block, None)
        self._held[block] = self._held.get(block, 0) + 1

    def __repr__(self) -> str:
        return f"<KvCache {self.used} used, {self.cached} cached, {self.free} free of {self.total}>"
