"""Scraped attributes that plugins read and that no server reports any more, such as a metric that an upgrade renamed.

Scores go on as the policy for stale metrics says, so nothing fails, and nothing else would tell. An attribute that no
server ever had isn't among them, and neither is one whose servers aren't scraped at all: those are other troubles.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from services.picker.state.columns import Columns
from shared.attributes import AttributeKey

NAMED = 5
"""Attributes that are named at most."""


class Vanished:
    """Looks from time to time at the attributes that are read."""

    def __init__(self) -> None:
        self._fresh: dict[AttributeKey[Any], float] = {}
        """When each was last seen fresh at some endpoint (monotonic seconds)."""
        self._gone: tuple[str, ...] = ()

    def look(
        self, columns: Columns, read: Mapping[AttributeKey[Any], tuple[str, ...]], now: float, after: float
    ) -> None:
        """`read` has the attributes, each with the plugins that read it; samples of `after` seconds ago are stale."""
        scraped = columns.newest() >= now - after
        gone: list[str] = []
        for key, readers in read.items():
            at = columns.numbers(key.wire).at if key.kind is float else columns.objects(key).at
            if np.logical_or.reduce(at >= now - after):
                self._fresh[key] = now
            elif key in self._fresh and np.logical_or.reduce(scraped):
                gone.append(f"{key.wire}, read by {' and '.join(readers)}, for {now - self._fresh[key]:.0f} s")
        self._gone = tuple(gone)

    def problem(self) -> str | None:
        """Which are gone, and for how long."""
        if not self._gone:
            return None
        more = [f"{len(self._gone) - NAMED} more"] if len(self._gone) > NAMED else []
        return f"no server reports what one reported before: {'; '.join([*self._gone[:NAMED], *more])}"

    def __repr__(self) -> str:
        return f"<Vanished {', '.join(self._gone) or 'none'}>"
