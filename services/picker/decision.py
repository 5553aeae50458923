"""A decision: where a request goes, or why it doesn't, and everything that led there.

It keeps the arrays that the plugins worked with and turns them into words only when somebody asks.
"""

from typing import Any

import numpy as np
from msgspec import Struct

from services.picker.requests.request import Refusal, Request, Route
from services.picker.scheduling.cycle import Reading
from services.picker.scheduling.record import ProfileRun
from services.picker.state.layout import Layout, Rows


class Decision(Struct, frozen=True, kw_only=True):
    """One request's decision. Rows are positions in `layout`."""

    request: Request
    outcome: Route | Refusal
    layout: Layout
    model: str = ""
    """The model after rewriting."""
    rewrite: str = ""
    """The InferenceModelRewrite that applied."""
    objective: str = ""
    priority: int = 0
    candidates: Rows | None = None
    runs: dict[str, ProfileRun] = {}
    primary: str = ""
    readings: dict[str, Reading] = {}
    tokens: int = 0
    """What the request is charged with while it is under way."""
    at: float = 0.0
    """Unix seconds."""
    monotonic: float = 0.0
    """When the readings were taken."""
    seconds: float = 0.0
    """What the decision took."""

    @property
    def picked(self) -> tuple[int, ...]:
        run = self.runs.get(self.primary)
        return run.picked if run is not None else ()

    def summary(self) -> dict[str, Any]:
        """One line's worth: what, where to, why not."""
        fields: dict[str, Any] = {
            "request_id": self.request.id,
            "at": self.at,
            "model": self.request.content.model,
            "target_model": self.model,
            "priority": self.priority,
            "microseconds": round(self.seconds * 1e6, 1),
        }
        if isinstance(self.outcome, Route):
            fields["destinations"] = list(self.outcome.destinations)
            fields["endpoint"] = self.layout.endpoints[self.picked[0]].id if self.picked else ""
        else:
            fields["refused"] = {
                "status": self.outcome.status,
                "message": self.outcome.message,
                "reason": self.outcome.reason,
            }
        return fields

    def explain(self) -> dict[str, Any]:
        """The whole decision: per profile what each filter kept, and per endpoint every score with its weight."""
        return {
            **self.summary(),
            "path": self.request.path,
            "api": self.request.content.api,
            "stream": self.request.content.stream,
            "body_bytes": self.request.body_size,
            "prompt_bytes": len(self.request.content.prompt),
            "objective": self.objective,
            "rewrite": self.rewrite,
            "subset": None if self.request.subset is None else list(self.request.subset),
            "candidates": self._ids(self.candidates),
            "charged_tokens": self.tokens,
            "primary_profile": self.primary,
            "profiles": {name: self._explain_run(run) for name, run in self.runs.items()},
            "inputs": {name: self._explain_reading(one) for name, one in self.readings.items()},
        }

    def _explain_run(self, run: ProfileRun) -> dict[str, Any]:
        endpoints = {
            self.layout.endpoints[row].id: {
                "total": _number(run.totals[at]) if len(run.totals) else 0.0,
                "scores": {
                    step.plugin: {
                        "score": _number(step.scores[at]),
                        "weight": step.weight,
                        "weighted": _number(step.weight * step.scores[at]),
                    }
                    for step in run.scores
                },
            }
            for at, row in enumerate(run.rows.tolist())
        }
        return {
            "filters": [
                {"plugin": step.plugin, "kept": len(step.kept), "removed": self._ids(_without(before, step.kept))}
                for step, before in zip(run.filters, _befores(run), strict=True)
            ],
            "endpoints": endpoints,
            "picker": run.picker,
            "picked": [self.layout.endpoints[row].id for row in run.picked],
        }

    def _explain_reading(self, reading: Reading) -> dict[str, Any]:
        return {
            self.layout.endpoints[row].id: {
                "value": None if np.isnan(value) else _number(value),
                "age": None if np.isinf(at) else round(self.monotonic - at, 4),
                "fresh": fresh,
            }
            for row, value, at, fresh in zip(
                reading.rows.tolist(),
                reading.values.tolist(),
                reading.at.tolist(),
                reading.fresh.tolist(),
                strict=True,
            )
        }

    def _ids(self, rows: Rows | None) -> list[str]:
        return [] if rows is None else [self.layout.endpoints[row].id for row in rows.tolist()]


def _befores(run: ProfileRun) -> list[Rows]:
    """What each filter of a run was given."""
    return [run.candidates, *(step.kept for step in run.filters[:-1])] if run.filters else []


def _without(rows: Rows, kept: Rows) -> Rows:
    left: Rows = rows[~np.isin(rows, kept)]
    return left


def _number(value: float) -> float:
    return round(float(value), 9)
