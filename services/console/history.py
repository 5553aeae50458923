"""The last ten minutes of each endpoint, sampled. A page that has just been opened gets its lines from here."""

from collections.abc import Iterable, Mapping
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from shared.pool_view.rows import EndpointRow
from shared.tasks import in_turns

INTERVAL = 5.0
"""Seconds between two samples."""
SAMPLES = 120
METRICS = ("queue", "running", "kv_cache", "in_flight")


class History:
    """Rings of at most so many endpoints; further ones have none."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._at = 0
        self._rings: dict[str, NDArray[np.float32]] = {}
        """By endpoint id: a row for each metric."""

    async def sample(self, rows: Iterable[EndpointRow]) -> None:
        """Take in the present values; endpoints that aren't there are forgotten."""
        at, rings = (self._at + 1) % SAMPLES, dict[str, NDArray[np.float32]]()
        async for row in in_turns(islice(rows, self._limit)):
            ring = self._rings.get(row.id)
            if ring is None:
                ring = np.full((len(METRICS), SAMPLES), np.nan, np.float32)
            rings[row.id] = ring
            values = (row.queue, row.running, row.kv, row.in_flight)
            ring[:, at] = [np.nan if value is None else value for value in values]
        self._at, self._rings = at, rings

    def of(self, ids: Iterable[str]) -> Mapping[str, Mapping[str, list[float]]]:
        """The samples of these endpoints, as far as they are kept: the oldest first, NaN where nothing was known."""
        found = {}
        for id in ids:
            if (ring := self._rings.get(id)) is not None:
                ordered = np.roll(ring, -self._at - 1, axis=1).astype(np.float64).round(3)
                found[id] = dict(zip(METRICS, ordered.tolist(), strict=True))
        return found

    def __repr__(self) -> str:
        return f"<History of {len(self._rings)} endpoints>"
