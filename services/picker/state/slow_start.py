"""Slow start: a new endpoint gets its share of the load step by step, while its caches are cold.

Its weight rises from `MIN_WEIGHT` to 1 within the window. An endpoint that has as many requests in flight as its weight
allows, measured by the mean of the warm endpoints of its role, ranks behind all others. So the ramp holds with any
scorer, and no request fails for it: where nothing else is left, the new endpoint is picked.

The endpoints of the first layout are warm: a picker that starts doesn't know how long they have served. The window
begins with the first decision that could pick the endpoint.
"""

from collections.abc import Mapping
from math import inf

import numpy as np

from services.picker.state.layout import Floats, Layout, Rows
from shared.model import ROLE, Endpoint

MIN_WEIGHT = 0.1
"""The weight at the beginning (Envoy's `min_weight_percent`)."""
REASON = "slow start"
_WARM, _NOT_BEGUN = -inf, inf
_NO_ROWS: Rows = np.zeros(0, np.intp)


class SlowStart:
    """The endpoints of a layout that are new. Without a window, none is."""

    def __init__(self, window: float = 0.0) -> None:
        """`window` is in seconds."""
        self._window = window
        self._layout = Layout()
        self._since: Floats = np.zeros(0)
        """When each endpoint's window began."""
        self._roles: Rows = _NO_ROWS
        """A number for each endpoint's role in disaggregated serving."""
        self.active = False
        """Whether any endpoint may be new."""

    def relayout(self, layout: Layout) -> None:
        """Endpoints that come, and those that have been drained, are new. So is another server under the same id."""
        former, self._layout = self._layout, layout
        if not self._window:
            return
        since = np.full(len(layout), _NOT_BEGUN if len(former) else _WARM)
        if len(former):
            here, there = layout.moved_from(former)
            since[here] = np.where(former.draining[there], _NOT_BEGUN, self._since[there])
        since[layout.draining] = _WARM  # until it is drained no longer
        self._since = since
        roles = {role: number for number, role in enumerate(dict.fromkeys(map(_role, layout.endpoints)))}
        self._roles = np.fromiter(map(roles.__getitem__, map(_role, layout.endpoints)), np.intp, len(layout))
        self._note()

    def weights(self, now: float) -> Floats:
        """The weight of every endpoint, from `MIN_WEIGHT` to 1."""
        if not self.active:
            return np.ones(len(self._layout))
        share = (now - np.minimum(self._since, now)) / self._window
        return np.minimum(np.maximum(share, MIN_WEIGHT), 1.0)

    def count(self, now: float) -> int:
        """How many endpoints are new."""
        return int(np.count_nonzero(self.weights(now) < 1.0))

    def held_back(
        self, candidates: Rows, requests: Floats, unhealthy: Mapping[int, str], now: float
    ) -> tuple[Rows, Floats]:
        """(the candidates that have as much as their weight allows, the weights of the candidates). `requests` are in
        flight, by the layout's positions."""
        since, rows = self._since, candidates
        since[rows[since[rows] == _NOT_BEGUN]] = now
        weights = self.weights(now)[rows]
        warm = weights >= 1.0
        if np.logical_and.reduce(warm):
            self._note(now)
            return _NO_ROWS, weights
        if unhealthy:
            warm &= ~np.isin(rows, np.fromiter(unhealthy, np.intp, len(unhealthy)))
        load, roles = requests[rows], self._roles[rows]
        number = np.bincount(roles[warm], minlength=int(self._roles.max()) + 1)
        total = np.bincount(roles[warm], load[warm], minlength=len(number))
        mean = np.divide(total, number, out=np.full(len(number), inf), where=number > 0)
        most = np.maximum(np.ceil(weights * mean[roles]), 1.0)
        return rows[(weights < 1.0) & (load >= most)], weights

    def _note(self, now: float = -inf) -> None:
        """Look whether any endpoint's window hasn't ended."""
        self._since[self._since <= now - self._window] = _WARM
        self.active = bool(np.logical_or.reduce(self._since > _WARM))

    def __repr__(self) -> str:
        return f"<SlowStart of {int(np.count_nonzero(self._since > _WARM))} of {len(self._layout)} endpoints>"


def _role(endpoint: Endpoint) -> str:
    return endpoint.labels.get(ROLE, "")
