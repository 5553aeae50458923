"""The responses of `/debug/decisions`, for `/openapi.json`. `Decision` writes them."""

from typing import Literal

from pydantic import BaseModel


class Refused(BaseModel):
    status: int
    message: str
    reason: str


class DecisionSummary(BaseModel):
    """`refused` is there for a refused request, the members from `destinations` to `status` for a routed one."""

    request_id: str
    at: str
    state: Literal["refused", "under way", "aborted", "completed"]
    model: str
    target_model: str
    objective: str
    priority: int
    waited_seconds: float
    microseconds: float
    destinations: list[str] = []
    endpoint: str = ""
    served_by: str | None = None
    served_endpoint: str | None = None
    status: int | None = None
    refused: Refused | None = None
    flow: str = ""
    """Of a request that flow control has seen."""
    duration_seconds: float | None
    plugin_failures: list[dict[str, str]] = []


class Subset(BaseModel):
    entries: int
    first: list[str]


class FilterStep(BaseModel):
    plugin: str
    kept: int
    removed: list[str]


class Score(BaseModel):
    score: float | None
    weight: float
    weighted: float | None


class EndpointScores(BaseModel):
    total: float | None
    scores: dict[str, Score]


class Profile(BaseModel):
    filters: list[FilterStep]
    endpoints: dict[str, EndpointScores]
    picker: str
    picked: list[str]
    ranked_last: dict[str, str]


class Input(BaseModel):
    value: float | None
    age: float | None
    fresh: bool


class RoleEndpoint(BaseModel):
    endpoint: str
    charged_tokens: int


class Queue(BaseModel):
    """The request's wait for room in the pool."""

    flow: str
    band: int
    ahead: int
    seconds: float
    released_by: str


class DecisionInFull(DecisionSummary):
    """Endpoints, profiles, plugins and attributes are named by the keys of objects."""

    configuration: str
    path: str
    api: str
    stream: bool
    body_bytes: int
    prompt_bytes: int
    rewrite: str
    subset: Subset | None
    queue: Queue | None
    candidates: list[str]
    excluded: dict[str, str]
    saturation: float | None
    charged_tokens: int
    stages: str
    skipped_stages: dict[str, str]
    roles: dict[str, RoleEndpoint]
    primary_profile: str
    profiles: dict[str, Profile]
    inputs: dict[str, dict[str, Input]]


class Decisions(BaseModel):
    """`total` is the number of decisions since the start. With `--workers`, `missing` names the workers that gave no
    answer, with the reason."""

    total: int
    decisions: list[DecisionSummary]
    missing: dict[str, str] = {}


class DecisionsOnRequest(BaseModel):
    """`missing` as for `Decisions`."""

    decisions: list[DecisionInFull]
    missing: dict[str, str] = {}
