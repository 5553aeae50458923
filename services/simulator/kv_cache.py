"""KV cache blocks and the prefix cache in them.

A block is in one of four states: free; private (not full yet); held by one or more requests under its hash; or cached,
which means full, held by no request, and available by its hash until its space is needed. Only counts and hashes are
kept, no block ids: two requests that compute the same block share it from then on.

Requests release their last block first, as in vLLM, so that the ends of prefixes are evicted before their beginnings.
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
        """Blocks that requests hold."""
        return self._private + len(self._held)

    @property
    def cached(self) -> int:
        """Blocks that no request holds and that can be reused by their hash."""
        return len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that a request can get: free ones, and cached ones by eviction."""
        return self.total - self.used

    @property
    def free(self) -> int:
        """Blocks that a request can get without an eviction."""
        return self.available - len(self._cached)

    @property
    def usage(self) -> float:
        """Share of the blocks that requests hold, 0 to 1; cached blocks don't count."""
        return self.used / self.total

    def match(self, hashes: Iterable[int]) -> int:
        """The number of these blocks, from the first on, that exist."""
        count = 0
        if self.caching:
            for block in hashes:
                if block not in self._held and block not in self._cached:
                    break
                count += 1
        return count

    def allocate(self, hits: Sequence[int], new: int) -> bool:
        """Take the blocks that `match` found and `new` private ones; False, and none, without enough space."""
        revived = sum(1 for block in hits if block not in self._held)
        if revived + new > self.available:
            return False
        for block in hits:
            self._hold(block)
        return self.grow(new)

    def grow(self, new: int) -> bool:
        """Take `new` private blocks, evicting the least recently used cached ones; False without enough space."""
        if new > self.available:
            return False
        self._private += new
        while self.free < 0:
            self._cached.popitem(last=False)
            self.evictions += 1
        return True

    def publish(self, hashes: Iterable[int]) -> None:
        """Private blocks are full and computed, so they are held under their hashes from now on."""
        for block in hashes:
            self._private -= 1
            self._hold(block)

    def release(self, hashes: Sequence[int], private: int) -> None:
        """Release blocks held under `hashes`, in the order of the prefix, and `private` ones."""
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
        """Remove all cached blocks."""
        self._cached.clear()

    def _hold(self, block: int) -> None:
        self._cached.pop(block, None)
        self._held[block] = self._held.get(block, 0) + 1

    def __repr__(self) -> str:
        return f"<KvCache {self.used} used, {self.cached} cached, {self.free} free of {self.total}>"
