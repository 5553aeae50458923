"""The record of a profile's run, step by step: enough to explain the pick, cheap enough to keep for every request."""

from collections.abc import Mapping

from msgspec import Struct

from services.picker.state.layout import Floats, Rows


class PluginFailure(Struct, frozen=True):
    """A plugin that failed on a request, and how; the decision was made without it."""

    plugin: str
    role: str
    error: str


class FilterStep(Struct, frozen=True):
    """A filter and what it let through."""

    plugin: str
    kept: Rows


class ScoreStep(Struct, frozen=True):
    """A scorer, its weight, and its scores (0..1) in the order of the run's rows."""

    plugin: str
    weight: float
    scores: Floats


class ProfileRun(Struct, frozen=True):
    """One run of a profile."""

    profile: str
    candidates: Rows
    filters: tuple[FilterStep, ...]
    rows: Rows
    """What the filters left."""
    scores: tuple[ScoreStep, ...]
    totals: Floats
    """Sum of weight · score, in the order of `rows`."""
    picker: str
    picked: tuple[int, ...]
    """Rows, the first choice first; empty when the filters left nothing."""
    unhealthy: Mapping[int, str] = {}
    """Rows that were ranked behind all others, and why; may name more rows than were candidates. Empty when all
    candidates were alike."""


class RolePlan(Struct, frozen=True):
    """A further endpoint that works on a request: the first pick of a profile."""

    profile: str
    until_response: bool = False
    """Whether its work is over when the response begins to come, as a prefill is; else at the end of the response."""


class Plan(Struct, frozen=True):
    """What the profiles' runs come to."""

    primary: str
    """The profile whose picks are the request's destinations."""
    roles: Mapping[str, RolePlan] = {}
    """Further endpoints by role, such as `prefill`. Each is charged with the request, too."""
    set_headers: Mapping[str, str] = {}
    """Headers that tell the primary endpoint of the others."""
