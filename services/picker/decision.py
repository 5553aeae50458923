"""A decision: where a request goes, or why it doesn't, and everything that led there.

It keeps the arrays that the plugins worked with and explains them only on demand. It keeps little of the request:
decisions outlive their requests, so they hold no prompt and nothing that a client can make large.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from math import inf, isfinite
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from services.picker.flow_control.ticket import Wait
from services.picker.request import Refusal, Request, Route
from services.picker.scheduling.cycle import PREFIX_MATCH, Cycle, PrefixMatch, Samples
from services.picker.scheduling.interfaces import Placement
from services.picker.scheduling.record import PluginFailure, ProfileRun
from services.picker.scheduling.response_plugins import ResponseHooks
from services.picker.state.layout import Layout, Rows
from services.picker.state.past_load import PastLoad
from shared.model import Endpoint

SHOWN = 256
"""Characters that are kept of a text that clients choose."""
DRAINING = "draining"
"""Why an endpoint was no candidate."""
SHOWN_SUBSET = 16
"""Entries that are kept of a subset hint."""


class RequestSummary(Struct, frozen=True):
    """What is kept of a request."""

    id: str
    path: str
    api: str
    model: str
    """The client's."""
    stream: bool
    body_bytes: int
    prompt_bytes: int
    subset: tuple[str, ...] | None
    subset_entries: int

    @classmethod
    def of(cls, request: Request) -> "RequestSummary":
        """The request without headers, prompt and query (it can hold a key), and with no text longer than `SHOWN`."""
        content, subset = request.content, request.subset
        return cls(
            request.id[:SHOWN],
            request.path.partition("?")[0][:SHOWN],
            content.api,
            content.model[:SHOWN],
            content.stream,
            request.body_size,
            len(content.prompt),
            None if subset is None else tuple(entry[:SHOWN] for entry in subset[:SHOWN_SUBSET]),
            0 if subset is None else len(subset),
        )


class Progress(Struct):
    """What happened to a request after its decision: the only part of a decision that changes."""

    served_by: str = ""
    """`first choice`, `fallback`, `other` or `unknown`; empty before the response begins."""
    endpoint: str = ""
    """The id of the endpoint that served, or its address where no endpoint has it; empty when that isn't known."""
    status: int | None = None
    """Of the response."""
    seconds: float | None = None
    """From the request's headers to its end; None while it is under way."""
    aborted: bool = False
    """Whether it ended before its response was complete."""
    placements: tuple[Placement, ...] = ()
    """Callbacks of producers, for when another endpoint serves than the first choice, or none. Empty once it is known
    who serves."""
    hooks: ResponseHooks | None = None
    """Calls of plugins that act on the response and on the end of the request; None if there are none, and at the
    end."""
    failures: tuple[PluginFailure, ...] = ()
    """Those of these plugins that failed."""

    @property
    def state(self) -> str:
        """`under way`, `aborted` or `completed`."""
        if self.seconds is None:
            return "under way"
        return "aborted" if self.aborted else "completed"

    def add_to(self, summary: dict[str, Any]) -> None:
        """Set the fields of a decision's summary that change after it."""
        if "destinations" in summary:
            summary |= {
                "state": self.state,
                "served_by": self.served_by or None,
                "served_endpoint": self.endpoint or None,
                "status": self.status,
            }
        summary["duration_seconds"] = None if self.seconds is None else round(self.seconds, 6)
        if self.failures:
            failures = [asdict(failure) for failure in self.failures]
            summary["plugin_failures"] = [*summary.get("plugin_failures", ()), *failures]


class ReplayInputs(Struct, frozen=True):
    """What else plugins could read, for a replay with another configuration; `samples` have the attributes."""

    prompt_tokens: int
    multimodal: bool
    prefix_match: PrefixMatch | None
    in_flight: PastLoad
    """At each endpoint of the layout, of all pickers."""
    ranked_last: Mapping[int, str]
    """As `Cycle.ranked_last`."""

    @classmethod
    def of(cls, cycle: Cycle) -> "ReplayInputs":
        multimodal, match = cycle.request.content.multimodal, cycle.get(PREFIX_MATCH)
        return cls(cycle.prompt_tokens, multimodal, match, cycle.view.in_flight.snapshot(), cycle.ranked_last)


class RoleCharge(Struct, frozen=True):
    """A further endpoint that works on the request, and what it is charged with."""

    row: int
    tokens: int
    until_response: bool
    """Whether until the response begins to come; else until its end."""
    others: tuple[int, ...] = ()
    """Rows of endpoints that share its work and aren't charged."""


class RoutedRequest(Struct, frozen=True):
    """What a routed request needs of its decision until it ends. It has no arrays and no layout: a decision among
    10 000 endpoints takes 300 kB, and requests may be many and long."""

    request: RequestSummary
    target_model: str
    rewrite: str
    priority: int
    destinations: tuple[str, ...]
    picked: tuple[Endpoint, ...]
    """First choice first."""
    helpers: tuple[Endpoint, ...]
    """The endpoints that prefill or encode for the one that answers: it may answer with a failure of theirs."""
    tokens_until_end: bool
    progress: Progress
    summary: dict[str, Any] | None = None
    """Of the decision, where the request's end is logged."""


class Decision(Struct, frozen=True, kw_only=True):
    """One request's decision. Rows are positions in `layout`."""

    request: RequestSummary
    outcome: Route | Refusal
    layout: Layout
    configuration: str = ""
    """The revision of the configuration that decided."""
    target_model: str = ""
    """The model after rewriting, cut to `SHOWN`, as the objective is."""
    rewrite: str = ""
    """The InferenceModelRewrite, or InferenceModel, that applied."""
    objective: str = ""
    priority: int = 0
    saturation: float | None = None
    """Of the candidates; None where it wasn't asked for, because the request may not be shed."""
    candidates: Rows | None = None
    runs: dict[str, ProfileRun] = {}
    primary: str = ""
    samples: dict[str, Samples] = {}
    replay_inputs: ReplayInputs | None = None
    tokens: int = 0
    """What the request is charged with while it is under way."""
    roles: dict[str, RoleCharge] = {}
    """Further endpoints that work on the request, such as `prefill`."""
    stages: str = ""
    """The stages that serve it, such as `decode-only`; empty without disaggregation, and for a refusal."""
    skipped_stages: Mapping[str, str] = {}
    """Stages that were wanted and have no working endpoint, and why."""
    tokens_until_end: bool = True
    """Whether these tokens count until the end; else until the response begins to come."""
    failures: tuple[PluginFailure, ...] = ()
    """Plugins that failed on the request."""
    at: float = 0.0
    """Unix seconds."""
    monotonic: float = 0.0
    """When the samples were taken."""
    waited: float = 0.0
    """Seconds from when the request was complete to when it was scheduled."""
    queued: Wait | None = None
    """Its wait for room in the pool; None without flow control."""
    seconds: float = 0.0
    """What the decision took."""
    progress: Progress = field(default_factory=Progress)

    @property
    def picked(self) -> tuple[int, ...]:
        """The chosen rows, first choice first; empty for a refusal."""
        run = self.runs.get(self.primary)
        return run.picked if run is not None else ()

    def to_keep(self) -> "Decision":
        """The decision without what its refusal quotes of the request's body."""
        outcome = self.outcome
        if isinstance(outcome, Route) or not outcome.kept:
            return self
        return replace(self, outcome=replace(outcome, message=outcome.kept))

    def routed(self, *, with_summary: bool = False) -> RoutedRequest:
        """What a request needs of this decision, whose outcome is a route."""
        outcome, endpoints = self.outcome, self.layout.endpoints
        assert isinstance(outcome, Route)
        return RoutedRequest(
            self.request,
            self.target_model,
            self.rewrite,
            self.priority,
            outcome.destinations,
            tuple([endpoints[row] for row in self.picked]),
            tuple([endpoints[row] for role in self.roles.values() for row in (role.row, *role.others)]),
            self.tokens_until_end,
            self.progress,
            self.summary() if with_summary else None,
        )

    def summary(self) -> dict[str, Any]:
        """A summary: the request, its destination or the reason of its refusal, and its outcome."""
        fields: dict[str, Any] = {
            "request_id": self.request.id,
            "at": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "state": "refused",
            "model": self.request.model,
            "target_model": self.target_model,
            "objective": self.objective,
            "priority": self.priority,
            "waited_seconds": round(self.waited, 6),
            "microseconds": round(self.seconds * 1e6, 1),
        }
        if isinstance(self.outcome, Route):
            fields["destinations"] = list(self.outcome.destinations)
            fields["endpoint"] = self.layout.endpoints[self.picked[0]].id if self.picked else ""
        else:
            fields["refused"] = {
                "status": self.outcome.status,
                "message": self.outcome.kept or self.outcome.message,
                "reason": self.outcome.reason,
            }
        if self.queued is not None:
            fields["flow"] = self.queued.flow
        if self.failures:
            fields["plugin_failures"] = [asdict(failure) for failure in self.failures]
        self.progress.add_to(fields)
        return fields

    def explain(self) -> dict[str, Any]:
        """The whole decision: what each filter kept, and every score with its weight, per profile and endpoint.

        The result is JSON-serialisable; numbers that aren't finite are None.
        """
        return {name: _whole(member) for name, member in self.explanation().items()}

    def explanation(self) -> dict[str, Any]:
        """The same, with iterators of ids and values in place of the objects that have a member for each endpoint:
        making these takes long."""
        request = self.request
        return {
            **self.summary(),
            "configuration": self.configuration,
            "path": request.path,
            "api": request.api,
            "stream": request.stream,
            "body_bytes": request.body_bytes,
            "prompt_bytes": request.prompt_bytes,
            "rewrite": self.rewrite,
            "subset": None
            if request.subset is None
            else {"entries": request.subset_entries, "first": list(request.subset)},
            "queue": None if self.queued is None else asdict(self.queued),
            "candidates": self._ids(self.candidates),
            "excluded": {
                self.layout.endpoints[row].id: DRAINING for row in np.flatnonzero(self.layout.draining).tolist()
            },
            "saturation": None if self.saturation is None else _number(self.saturation),
            "charged_tokens": self.tokens,
            "stages": self.stages,
            "skipped_stages": dict(self.skipped_stages),
            "roles": {
                role: {"endpoint": self.layout.endpoints[charge.row].id, "charged_tokens": charge.tokens}
                for role, charge in self.roles.items()
            },
            "primary_profile": self.primary,
            "profiles": {name: self._explain_run(run) for name, run in self.runs.items()},
            "inputs": {name: self._explain_samples(samples) for name, samples in self.samples.items()},
        }

    def _explain_run(self, run: ProfileRun) -> dict[str, Any]:
        before = [run.candidates, *(step.kept for step in run.filters)]
        return {
            "filters": [
                {"plugin": step.plugin, "kept": len(step.kept), "removed": self._ids(given[~np.isin(given, step.kept)])}
                for given, step in zip(before, run.filters, strict=False)
            ],
            "endpoints": self._explain_totals(run),
            "picker": run.picker,
            "picked": [self.layout.endpoints[row].id for row in run.picked],
            "ranked_last": {
                self.layout.endpoints[row].id: run.ranked_last[row]
                for row in run.rows.tolist()
                if row in run.ranked_last
            },
        }

    def _explain_totals(self, run: ProfileRun) -> Iterator[tuple[str, Any]]:
        columns = [(step.plugin, step.weight, step.scores.tolist()) for step in run.scores]
        for at, (row, total) in enumerate(zip(run.rows.tolist(), run.totals.tolist(), strict=True)):
            scores = {
                plugin: {"score": _number(given[at]), "weight": weight, "weighted": _number(weight * given[at])}
                for plugin, weight, given in columns
            }
            yield self.layout.endpoints[row].id, {"total": _number(total), "scores": scores}

    def _explain_samples(self, samples: Samples) -> Iterator[tuple[str, Any]]:
        rows = samples.rows.tolist()
        times = [self.monotonic] * len(rows) if samples.at is None else samples.at.tolist()
        fresh = [True] * len(rows) if samples.fresh is None else samples.fresh.tolist()
        for row, value, at, known in zip(rows, samples.values.tolist(), times, fresh, strict=True):
            age = round(max(0.0, self.monotonic - at), 4) if at > -inf else None
            yield self.layout.endpoints[row].id, {"value": _number(value), "age": age, "fresh": known}

    def _ids(self, rows: Rows | None) -> list[str]:
        return [] if rows is None else [self.layout.endpoints[row].id for row in rows.tolist()]


def _whole(value: Any) -> Any:
    """An explanation without iterators."""
    if isinstance(value, dict):
        return {name: _whole(member) for name, member in value.items()}
    return dict(value) if isinstance(value, Iterator) else value


def _number(value: float) -> float | None:
    return round(value, 9) if isfinite(value) else None
