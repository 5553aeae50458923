"""Load in flight as it was at each decision, without a copy for each: a table, and its changes since it was made."""

from msgspec import Struct

from services.picker.state.layout import Floats

MAX_CHANGES = 256
"""Changes after which the table is built again."""


class PastLoad(Struct, frozen=True):
    """Expected requests and tokens at one moment. Many share their table and the list of changes, which grows."""

    table: tuple[Floats, Floats]
    """Requests and tokens of all rows. Shape: (rows,) each."""
    changes: list[tuple[int, int, int]]
    """Row, requests and tokens of each change since then."""
    count: int
    """How many of them had been made."""

    def tables(self) -> tuple[Floats, Floats]:
        """Requests and tokens of all rows, in arrays of their own. Shape: (rows,) each."""
        requests, tokens = (column.copy() for column in self.table)
        for row, more_requests, more_tokens in self.changes[: self.count]:
            requests[row] += more_requests
            tokens[row] += more_tokens
        return requests, tokens
