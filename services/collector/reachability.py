"""Whether a model server can be reached, by what its scrapes come to.

Only a server that refuses connections, or doesn't answer in time, begins to seem down: one that answers with an error,
or with a page that can't be used, runs. Once it seems down, only a page ends that. A server with several sources is
reachable as long as one of them brings pages.
"""

from services.collector.http.client import Failure

SILENT = frozenset({Failure.CONNECT, Failure.TIMEOUT})
"""The failures of a server that isn't there."""


class Reachability:
    """One endpoint's. It is unreachable after `threshold` silent failures in a row of one source, without a page from
    any other source meanwhile, and until the next page."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self._rows: dict[str, tuple[int, float]] = {}
        """By source: silent failures in a row, and when the first of them was asked for."""
        self._page_at = float("-inf")
        self.unreachable = False

    def answered(self, source: str, at: float) -> None:
        """A page came that was asked for at `at`."""
        self._rows.pop(source, None)
        self._page_at = max(self._page_at, at)
        self.unreachable = False

    def failed(self, source: str, kind: Failure, at: float) -> bool:
        """A scrape that began at `at` brought no page; whether the server is unreachable. An error alone never makes it
        so, but where it is, an error confirms it: only a page makes it reachable."""
        if kind not in SILENT:
            self._rows.pop(source, None)
            return self.unreachable
        count, since = self._rows.get(source, (0, at))
        self._rows[source] = count + 1, since
        if count + 1 >= self._threshold and since > self._page_at:
            self.unreachable = True
        return self.unreachable

    def __repr__(self) -> str:
        return f"<Reachability {'unreachable' if self.unreachable else 'reachable'} {self._rows}>"
