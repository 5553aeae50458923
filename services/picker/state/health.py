"""Which endpoints seem to be down: decisions rank them behind all others.

There are four signs: a collector reports the endpoint as unreachable, because several scrapes in a row were refused or
timed out; a fallback served a request in its place; it was a helper (it was to prefill or to encode) of a request that
failed, because sidecars answer with the status of a helper, or 502 if they can't reach it; or it answered several
requests in a row with errors. A server that fails at once has hardly any load, so it would get most requests.

The next good scrape that began after the sign ends it, but not that of errors: a server may fail requests while its
metrics are fine. An answer without an error ends that one. After a failure, the decode server and its helpers stay
apart for a while, and a good scrape doesn't help a helper that failed several decode servers. Without news a sign
expires, because collectors may be gone, or NATS, and an endpoint that ranks last gets no requests.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from services.picker.state.columns import Columns
from services.picker.state.failed_pairs import FailedPairs
from services.picker.state.layout import Layout
from shared.attributes import REACHABLE
from shared.model import HELPERS, ROLE, Endpoint

EXPIRY = 30.0
"""Seconds; as long as Envoy's outlier detection ejects a host the first time (`base_ejection_time`)."""
UNREACHABLE = "its scrapes are refused or time out"
REPLACED = "a fallback served in its place"
NO_HELP = "a request that it was to prefill or encode failed"
FAILING = "its last answers are errors"
FAILED = 500
"""The lowest status that counts as a failure."""
FAILURES = 5
"""In a row; as many as Envoy's outlier detection needs to eject a host (`consecutive_5xx`)."""
DOUBTED = 2
"""Failures in a row from which on a decode server's 502 says nothing of helpers. One may be due to a helper, whose sign
keeps it away from the next requests; further ones with other helpers are due to what they have in common. Two prefill
servers that die together still get their signs from one decode server."""
UNAVAILABLE = 503
"""The status of a full server, and what proxies answer for one that they can't connect to."""
_BAD_GATEWAY = 502
_ABOUT_THE_REQUEST = frozenset((501, 505))
"""Statuses of a method or a version that no server has: they say nothing of this one."""
SHOWN = 5
"""Endpoints that the note names."""


def is_failure(status: int) -> bool:
    """Whether it says that a server failed."""
    return status >= FAILED and status not in _ABOUT_THE_REQUEST


class Health:
    """The unhealthy endpoints of a layout. A sign holds for `expiry` seconds without news."""

    def __init__(self, columns: Columns, expiry: float = EXPIRY) -> None:
        self._columns = columns
        self._expiry = expiry
        self._layout = Layout()
        self._seen: dict[str, tuple[float, str]] = {}
        """When a response was the sign, and of what, by the endpoint's id; without those that scrapes confirmed."""
        self._pairs = FailedPairs(expiry)
        self.failures: dict[str, int] = {}
        """How many failures in a row an endpoint answered last, by its id; without endpoints that answered none."""
        self._failing: dict[str, float] = {}
        """The last failure of endpoints with the sign of errors, by id; who got it first comes first."""
        self._most: int | None = None
        """Endpoints that may have this sign at a time; None until it is asked for. Clients can provoke errors, and full
        servers answer with them, so it takes no more than half of those away that answer clients."""
        self._now = 0.0
        self.unhealthy: Mapping[int, str] = {}
        """Why a row is unhealthy. Replaced, never changed: who reads it may keep it."""

    def relayout(self, layout: Layout) -> None:
        """Endpoints that have gone, or are another server under the same id, lose their signs. The columns have the new
        layout already."""
        if self._seen or self.failures or self._pairs:
            here, _ = layout.moved_from(self._layout)
            stayed = {layout.endpoints[row].id for row in here.tolist()}
            self._seen = {id: seen for id, seen in self._seen.items() if id in stayed}
            self._pairs.keep(stayed)
            self.failures = {id: count for id, count in self.failures.items() if id in stayed}
            self._failing = {id: since for id, since in self._failing.items() if id in stayed}
        self._layout, self._most = layout, None
        while self._failing and len(self._failing) > self._most_failing():
            self._failing.popitem()
        self.refresh(self._now)

    def suspect(self, endpoint: Endpoint, now: float, why: str = REPLACED) -> None:
        """A response is a sign that this endpoint is down. Has no effect if the endpoint has left the layout or is
        another server now."""
        if (row := self._row(endpoint)) is None:
            return
        self._now, self._seen[endpoint.id] = now, (now, why)
        if self.unhealthy.get(row) not in (why, UNREACHABLE):
            self.unhealthy = {**self.unhealthy, row: why}

    def answered(self, endpoint: Endpoint | None, status: int, now: float, helpers: Sequence[Endpoint] = ()) -> None:
        """A response has begun: with a status from 500 on it is a failure, any lower one ends the endpoint's failures.
        It need not be told of an answer without an error unless it `listens`.

        `endpoint` answered; None if that isn't known. `helpers` were to prefill or encode the request: a failure keeps
        them and the endpoint apart, and marks a single one, if the endpoint isn't `DOUBTED`. Where one was apart
        already, or has a sign, the failure is due to it, and doesn't count as one of the endpoint: otherwise the
        requests under way to a dead helper would take the decode servers away, too. Of several helpers without a sign,
        it is due to those that failed most decode servers since they last worked. A full server refuses some requests
        with 503, of either kind: these count for a pair alone until it refused `FAILURES` more than it answered, unless
        the endpoint refuses requests that have no helper in common.
        """
        if status in _ABOUT_THE_REQUEST:
            return
        if endpoint is not None and self._row(endpoint) is None:
            endpoint = None
        count = 0 if endpoint is None else self.failures.get(endpoint.id, 0)
        if status < FAILED:
            self._pairs.worked("" if endpoint is None else endpoint.id, [helper.id for helper in helpers])
            if endpoint is not None and count:
                del self.failures[endpoint.id]
                if self._failing.pop(endpoint.id, None) is not None:
                    self.refresh(now)
            return
        if helpers and self._failed_with(endpoint, helpers, status, now):
            return
        if endpoint is not None:
            self._failed(endpoint.id, count + 1, now)

    def _failed_with(self, decode: Endpoint | None, helpers: Sequence[Endpoint], status: int, now: float) -> bool:
        """A failure may be a helper's: sidecars answer with its status, or with 502 if they can't reach it. Returns
        whether it says nothing of the decode server."""
        if decode is None:
            if status == _BAD_GATEWAY and len(helpers) == 1:  # another one may be the proxy's own
                self.suspect(helpers[0], now, NO_HELP)
            return True
        pairs = self._pairs
        others = {helper.id: helper for helper in helpers if helper.id != decode.id}
        if status == UNAVAILABLE and others:
            refused = pairs.refused(decode.id, others, now)
            others = {id: helper for id, helper in others.items() if refused[id] >= FAILURES}
            if not others:
                return not pairs.refuses_alone(decode.id)
        known = others.keys() & pairs.of(decode.id)
        explained = [id for id, helper in others.items() if id in known or self._row(helper) in self.unhealthy]
        most = max(map(pairs.accusers, others), default=0)
        culprits = explained or [id for id in others if pairs.accusers(id) == most]
        for id in culprits:
            if self._row(others[id]) is not None:
                pairs.add(decode.id, id, now)
        if len(culprits) == 1 and not known and self.failures.get(decode.id, 0) < DOUBTED:
            self.suspect(others[culprits[0]], now, NO_HELP)
        return bool(explained)

    @property
    def listens(self) -> bool:
        """Whether answers without an error matter, too."""
        return bool(self.failures or self._pairs)

    def apart_from(self, decode: int | None) -> Mapping[int, str]:
        """The rows of helpers that failed this decode server lately, and why they rank last for it. None for a decode
        server that isn't known yet: those that failed several."""
        if not self._pairs:
            return {}
        pairs, index = self._pairs, self._layout.index
        ids = pairs.disputed() if decode is None else pairs.of(self._layout.endpoints[decode].id)
        return dict.fromkeys([index[id] for id in ids], NO_HELP)

    def _failed(self, id: str, count: int, now: float) -> None:
        self.failures[id] = count
        if count < FAILURES:
            return
        if id in self._failing:
            self._failing[id] = now
        elif len(self._failing) < self._most_failing():
            self._failing[id] = now
            self.refresh(now)

    def _most_failing(self) -> int:
        if self._most is None:
            roles = [endpoint.labels.get(ROLE) for endpoint in self._layout.endpoints]
            self._most = sum(role not in HELPERS for role in roles) // 2
        return self._most

    def _row(self, endpoint: Endpoint) -> int | None:
        """Where the endpoint is; None if it has left the layout or is another server now."""
        row = self._layout.index.get(endpoint.id)
        if row is None:
            return None
        known = self._layout.endpoints[row]
        return row if (known.uid, known.authority) == (endpoint.uid, endpoint.authority) else None

    def refresh(self, now: float) -> None:
        """Update from the collectors' reports and the time."""
        self._now = now
        column = self._columns.numbers(REACHABLE.wire)
        reported, at = column.values, column.at
        # a row that nobody reported is NaN, which equals nothing
        found = dict.fromkeys(np.flatnonzero((reported == 0.0) & (at >= now - self._expiry)).tolist(), UNREACHABLE)
        for id, (since, why) in list(self._seen.items()):
            row = self._layout.index[id]
            told = at[row] > since and not np.isnan(reported[row])
            if told and not reported[row]:
                self._pairs.forget(id)
            if since < now - self._expiry or (told and not (reported[row] and self._pairs.condemn(id))):
                del self._seen[id]
            else:
                found.setdefault(row, why)
        self._pairs.expire(now)
        for id, since in list(self._failing.items()):
            if since < now - self._expiry:
                del self._failing[id]
            else:
                found.setdefault(self._layout.index[id], FAILING)
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
