"""The LoRA adapters of a server: loading, use and eviction.

An adapter takes one of `capacity` slots when its loading begins. The least recently used adapter is evicted, if no
running request uses it.
"""

from collections.abc import Collection


class Adapters:
    """The adapters of a server."""

    def __init__(self, capacity: int, load_time: int) -> None:
        self.capacity = capacity
        self.load_time = load_time
        """Nanoseconds."""
        self.loads = 0
        self.evictions = 0
        self._users: dict[str, int] = {}
        self._idle: dict[str, None] = {}
        """Loaded adapters without a running request, the least recently used first."""
        self._loading: dict[str, int] = {}

    @property
    def loaded(self) -> tuple[str, ...]:
        return (*self._users, *self._idle)

    @property
    def next_load(self) -> int | None:
        """When the next adapter will be loaded, in nanoseconds."""
        return min(self._loading.values(), default=None)

    def request(self, name: str, now: int, keep: Collection[str]) -> bool:
        """Whether a request for this adapter can run. If not, the adapter begins to load if a slot is free or another
        adapter can be evicted. `keep` are adapters for which earlier requests wait; they aren't evicted."""
        if not name or name in self._users or name in self._idle:
            return True
        if name in self._loading:
            return False
        if len(self._users) + len(self._idle) + len(self._loading) >= self.capacity:
            victim = next((idle for idle in self._idle if idle not in keep), None)
            if victim is None:
                return False
            del self._idle[victim]
            self.evictions += 1
        self._loading[name] = now + self.load_time
        return False

    def finish_loads(self, now: int) -> None:
        """Complete the loads that are due."""
        for name in [adapter for adapter, at in self._loading.items() if at <= now]:
            del self._loading[name]
            self._idle[name] = None
            self.loads += 1

    def use(self, name: str) -> None:
        """A request begins to run with a loaded adapter."""
        if name:
            self._idle.pop(name, None)
            self._users[name] = self._users.get(name, 0) + 1

    def leave(self, name: str) -> None:
        """A request has stopped running."""
        if name:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name]
                self._idle[name] = None

    def __repr__(self) -> str:
        return (
            f"<Adapters used {self._users}, idle {list(self._idle)}, loading {list(self._loading)} of {self.capacity}>"
        )
