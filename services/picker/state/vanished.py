"""Finds scraped attributes that plugins read and no server reports any more, such as a metric that an upgrade renamed.

Scoring goes on by the policy for stale metrics, so nothing fails and nothing else shows the cause. An attribute that no
server ever had isn't found, and neither is one whose servers aren't scraped at all: other checks report those.

A server is to report an attribute if it has done so, or if it joined the pool after another one did: it may replace
that one. One that never had the attribute, such as of another engine, isn't, so an attribute is forgotten when the last
of the others leaves the pool.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from services.picker.state.columns import Columns
from services.picker.state.layout import Layout, Mask
from shared.attributes import AttributeKey

NAMED = 5
"""Attributes that are named at most."""


class VanishedAttributes:
    """Looks from time to time at the attributes that are read."""

    def __init__(self) -> None:
        self._fresh: dict[AttributeKey[Any], float] = {}
        """When each was last seen fresh at some endpoint (monotonic seconds)."""
        self._without: dict[AttributeKey[Any], set[str]] = {}
        """Ids of endpoints that were scraped when it was first seen, and have never had it."""
        self._gone: tuple[str, ...] = ()

    def check(
        self,
        layout: Layout,
        columns: Columns,
        read: Mapping[AttributeKey[Any], tuple[str, ...]],
        now: float,
        after: float,
    ) -> None:
        """`columns` are of this layout. `read` has the attributes, each with the plugins that read it; samples of
        `after` seconds ago are stale."""
        scraped = columns.newest() >= now - after
        gone: list[str] = []
        for key, readers in read.items():
            at = columns.numbers(key.wire).at if key.kind is float else columns.objects(key).at
            fresh = at >= now - after
            if np.logical_or.reduce(fresh):
                former = self._without.get(key)
                without = _ids(layout, scraped & ~fresh)
                self._without[key] = without if former is None else former - _ids(layout, fresh)
                self._fresh[key] = now
            elif key in self._fresh and np.logical_or.reduce(scraped):
                without = self._without[key]
                if without.issuperset(layout.index):
                    del self._fresh[key], self._without[key]
                elif not without.issuperset(_ids(layout, scraped)):
                    gone.append(f"{key.wire}, read by {' and '.join(readers)}, for {now - self._fresh[key]:.0f} s")
        self._gone = tuple(gone)

    def problem(self) -> str | None:
        """Which are gone, and for how long."""
        if not self._gone:
            return None
        more = [f"{len(self._gone) - NAMED} more"] if len(self._gone) > NAMED else []
        return f"attributes that no server reports any more: {'; '.join([*self._gone[:NAMED], *more])}"

    def __repr__(self) -> str:
        return f"<VanishedAttributes {', '.join(self._gone) or 'none'}>"


def _ids(layout: Layout, which: Mask) -> set[str]:
    return {layout.endpoints[row].id for row in np.flatnonzero(which).tolist()}
