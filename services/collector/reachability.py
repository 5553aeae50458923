"""Whether a model server is reachable, by the results of its scrapes.

Only refused connections and time-outs make a server unreachable: one that answers with an error or a bad page is
running. Only a page makes it reachable again. A server with several sources is reachable while one of them brings
pages.
"""

from services.collector.http.client import Failure

UNREACHABLE = frozenset({Failure.CONNECT, Failure.TIMEOUT})
"""The failures of a server that isn't there."""


class Reachability:
    """One endpoint is unreachable after `threshold` consecutive failures of one source without a page from any other
    source, until the next page."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self._streaks: dict[str, tuple[int, float]] = {}
        """By source: consecutive failures, and when the first of these scrapes began."""
        self._page_at = float("-inf")
        self.unreachable = False

    def answered(self, source: str, at: float) -> None:
        """A scrape that began at `at` brought a page."""
        self._streaks.pop(source, None)
        self._page_at = max(self._page_at, at)
        self.unreachable = False

    def failed(self, source: str, kind: Failure, at: float) -> bool:
        """A scrape that began at `at` failed. Returns whether the server is unreachable."""
        if kind not in UNREACHABLE:
            self._streaks.pop(source, None)
            return self.unreachable
        count, since = self._streaks.get(source, (0, at))
        self._streaks[source] = count + 1, since
        if count + 1 >= self._threshold and since > self._page_at:
            self.unreachable = True
        return self.unreachable

    def __repr__(self) -> str:
        return f"<Reachability {'unreachable' if self.unreachable else 'reachable'} {self._streaks}>"
