"""The API as `services.watcher.kubernetes.reflector` sees it, without HTTP, with failures on demand."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from services.watcher.kubernetes.client import Page
from services.watcher.kubernetes.errors import ConnectionFailed, KubernetesError
from services.watcher.kubernetes.resource import Selection
from tests.fake_kubernetes.cluster import Cluster, bookmark


class FakeApi:
    """A cluster's API. Watches deliver what happens until they are told to do something else."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.list_failures: deque[KubernetesError] = deque()
        """Raised by the next requests for pages, one each."""
        self.watch_failures: deque[KubernetesError] = deque()
        """Raised by the next watches at their begin."""
        self.down: Callable[[], KubernetesError | None] = lambda: None
        """Raised by every request."""
        self.pages: list[tuple[int | None, str]] = []
        """(limit, continue) of each request for a page."""
        self.watches: list[str] = []
        """The resource version of each watch that was asked for."""
        self.timeouts: list[float] = []
        self.before_page: Callable[[], None] = lambda: None
        self.before_watch: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)
        self.piece = 0
        """Bytes of the pieces that a watch delivers; 0: as they are."""
        self._orders: asyncio.Queue[bytes | KubernetesError | None] = asyncio.Queue()
        self.open = 0
        """Watches that are open."""
        self._idle = asyncio.Event()
        cluster.on_change.append(lambda: self._orders.put_nowait(b""))

    def send(self, data: bytes) -> None:
        """Bytes on the watch that is open."""
        self._order(data)

    def end(self) -> None:
        """The watch ends as the server ends it after its time."""
        self._order(None)

    def fail(self, error: KubernetesError | None = None) -> None:
        """The connection of the watch breaks."""
        self._order(error or ConnectionFailed("the connection broke off"))

    def send_bookmark(self) -> None:
        self._order(bookmark(str(self.cluster.version)))

    async def idle(self) -> None:
        """Until a watch is open, has delivered everything, and whoever reads it waits for more."""
        await asyncio.wait_for(self._idle.wait(), 10)

    async def page(self, selection: Selection, limit: int | None, after: str = "") -> Page:
        self.pages.append((limit, after))
        await asyncio.sleep(0)
        self.before_page()
        if error := self.down():
            raise error
        if self.list_failures:
            raise self.list_failures.popleft()
        return self.cluster.page(selection, limit, after)

    @asynccontextmanager
    async def stream(
        self, selection: Selection, resource_version: str, seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        self.watches.append(resource_version)
        self.timeouts.append(seconds)
        await self.before_watch()
        if error := self.down():
            raise error
        if self.watch_failures:
            raise self.watch_failures.popleft()
        self.cluster.since(selection, resource_version)  # 410 at connect
        self._orders = asyncio.Queue()
        self.open += 1
        try:
            yield self._deliver(selection, int(resource_version))
        finally:
            self.open -= 1
            self._idle.clear()

    async def _deliver(self, selection: Selection, version: int) -> AsyncIterator[bytes]:
        while True:
            for at, line in self.cluster.since(selection, str(version)):
                version = at
                for piece in self._cut(line):
                    yield piece
            version = max(version, self.cluster.version)
            if self._orders.empty():
                self._idle.set()
            order = await self._orders.get()
            if order is None:
                return
            if isinstance(order, KubernetesError):
                raise order
            for piece in self._cut(order):
                yield piece

    def _cut(self, data: bytes) -> list[bytes]:
        step = self.piece or max(1, len(data))
        return [data[start : start + step] for start in range(0, len(data), step)]

    def _order(self, order: bytes | KubernetesError | None) -> None:
        self._idle.clear()
        self._orders.put_nowait(order)
