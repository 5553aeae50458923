"""Which endpoints seem to be down: decisions rank them behind all others.

There are three signs: a collector reports the endpoint as unreachable, because several scrapes in a row were refused or
timed out; a fallback served a request in its place; or it was to prefill a request that was answered with 502, which is
what sidecars say of a prefill server that they can't reach. The next good scrape that began after the sign ends it.
Without news a sign expires, because collectors may be gone, or NATS.
"""

from collections.abc import Mapping

import numpy as np

from services.picker.state.columns import Columns
from services.picker.state.layout import Layout
from shared.attributes import REACHABLE
from shared.model import Endpoint

EXPIRY = 30.0
"""Seconds; as long as Envoy's outlier detection ejects a host the first time (`base_ejection_time`)."""
UNREACHABLE = "its scrapes are refused or time out"
REPLACED = "a fallback served in its place"
NO_PREFILL = "its decode server answered 502"
SHOWN = 5
"""Endpoints that the note names."""


class Health:
    """The unhealthy endpoints of a layout. A sign holds for `expiry` seconds without news."""

    def __init__(self, columns: Columns, expiry: float = EXPIRY) -> None:
        self._columns = columns
        self._expiry = expiry
        self._layout = Layout()
        self._seen: dict[str, tuple[float, str]] = {}
        """When a response was the sign, and of what, by the endpoint's id."""
        self._now = 0.0
        self.unhealthy: Mapping[int, str] = {}
        """Why a row is unhealthy. Replaced, never changed: who reads it may keep it."""

    def relayout(self, layout: Layout) -> None:
        """Endpoints that have gone, or are another server under the same id, lose their signs. The columns have the new
        layout already."""
        if self._seen:
            here, _ = layout.moved_from(self._layout)
            stayed = {layout.endpoints[row].id for row in here.tolist()}
            self._seen = {id: seen for id, seen in self._seen.items() if id in stayed}
        self._layout = layout
        self.refresh(self._now)

    def suspect(self, endpoint: Endpoint, now: float, why: str = REPLACED) -> None:
        """A response is a sign that this endpoint is down. Has no effect if the endpoint has left the layout or is
        another server now."""
        row = self._layout.index.get(endpoint.id)
        if row is None:
            return
        known = self._layout.endpoints[row]
        if (known.uid, known.authority) == (endpoint.uid, endpoint.authority):
            self._seen[endpoint.id] = now, why
            self.refresh(now)

    def refresh(self, now: float) -> None:
        """Update from the collectors' reports and the time."""
        self._now = now
        column = self._columns.numbers(REACHABLE.wire)
        reported, at = column.values, column.at
        # a row that nobody reported is NaN, which equals nothing
        found = dict.fromkeys(np.flatnonzero((reported == 0.0) & (at >= now - self._expiry)).tolist(), UNREACHABLE)
        for id, (since, why) in list(self._seen.items()):
            row = self._layout.index[id]
            if since < now - self._expiry or (reported[row] == 1.0 and at[row] > since):
                del self._seen[id]
            else:
                found.setdefault(row, why)
        if found != self.unhealthy:
            self.unhealthy = found

    def note(self) -> str | None:
        """What `/readyz` mentions: that there are no endpoints, or which ones are unhealthy and why; None otherwise."""
        endpoints = self._layout.endpoints
        if not endpoints:
            return "the pool has no endpoints"
        if not self.unhealthy:
            return None
        named = [f"{endpoints[row].id} ({why})" for row, why in sorted(self.unhealthy.items())[:SHOWN]]
        if len(self.unhealthy) > SHOWN:
            named.append(f"{len(self.unhealthy) - SHOWN} more")
        rank = "rank last" if len(self.unhealthy) < len(endpoints) else "seem to be down, so all stay candidates"
        return f"{len(self.unhealthy)} of {len(endpoints)} endpoints {rank}: {', '.join(named)}"

    def __repr__(self) -> str:
        return f"<Health {len(self.unhealthy)} of {len(self._layout)} endpoints unhealthy>"
