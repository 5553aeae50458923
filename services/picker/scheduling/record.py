"""The record of a profile's run, step by step: enough to explain the pick, cheap enough to keep for every request."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from services.picker.request import Refusal
from services.picker.responses.usage import NOTHING, Usage
from services.picker.state.layout import Floats, Rows
from shared.model import Endpoint
from shared.plugin import Plugin


class PluginFailure(Struct, frozen=True):
    """A plugin that failed on a request, and how; the decision was made without it."""

    plugin: str
    role: str
    error: str


class FilterStep(Struct, frozen=True):
    """A filter and what it let through."""

    plugin: str
    kept: Rows
    read: tuple[str, ...] = ()
    """Names of the samples that it read, some twice; empty where it removed nothing."""


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
    """Rows, the first choice first; empty when the filters left nothing. Behind all that the filters left, there may be
    fallbacks among those that a filter only prefers others to."""
    ranked_last: Mapping[int, str] = {}
    """Rows that were ranked behind all others, and why; may name more rows than were candidates. Empty when all
    candidates were alike."""


class RolePlan(Struct, frozen=True):
    """A further endpoint that works on a request: the first pick of a profile."""

    profile: str
    until_response: bool = False
    """Whether its work is over when the response begins to come, as a prefill is; else at the end of the response."""
    reads_prompt: bool = False
    """Whether it computes the prompt: its cache has it then."""
    others: tuple[int, ...] = ()
    """Rows of endpoints that share the work, as encode servers share a request's pictures. They aren't charged."""


class Plan(Struct, frozen=True):
    """The result of the profiles' runs."""

    primary: str
    """The profile whose picks are the request's destinations."""
    roles: Mapping[str, RolePlan] = {}
    """Further endpoints by role, such as `prefill`. Each is charged with the request, too."""
    set_headers: Mapping[str, str] = {}
    """Headers that name the other endpoints for the primary one."""
    stages: str = ""
    """The stages that serve the request, such as `prefill-decode` or `decode-only`; empty where there are no stages."""
    port: int | None = None
    """The port of the destination in place of its own. There are no fallbacks then, as a header names its own port."""
    skipped: Mapping[str, str] = {}
    """Stages that were wanted and have no working endpoint, such as `prefill`, and why."""


class Exchange(Struct, kw_only=True):
    """A scheduled request and what is known of its response so far, for the plugins that act on it. They don't change
    it. It holds no prompt, and nothing of it is kept when the request is over."""

    request_id: str
    model: str
    """The target model."""
    priority: int
    picked: tuple[Endpoint, ...]
    """The endpoints that the primary profile picked, first choice first."""
    profiles: Mapping[str, tuple[Endpoint, ...]]
    """The endpoints that each profile picked."""
    refusal: Refusal | None
    """Why the request was refused after the pick; None if it was routed."""
    remembered: Mapping[Plugin, Any]
    """What plugins kept with `Cycle.remember`, by plugin."""
    status: int | None = None
    """HTTP status of the response; None before it begins, and where the proxy doesn't show it."""
    endpoint: str = ""
    """The id of the endpoint that serves, or its address if no endpoint has it; empty as long as that isn't known."""
    authority: str = ""
    """The `address:port` that serves, as the proxy reports it; empty as long as that isn't known."""
    usage: Usage = NOTHING
    """The tokens that the response has reported so far."""
    seconds: float = 0.0
    """Since the request's headers."""
    aborted: bool = False
    """Whether it ended before its response was complete."""
