"""Reads requests, schedules them and keeps the decisions: what all streams of a picker share."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import structlog

from services.picker.admin.decisions import DecisionRing
from services.picker.admin.metrics import PickerMetrics
from services.picker.body_buffer import MemoryBudget
from services.picker.decision import SHOWN, Decision, Progress
from services.picker.director import Prepared
from services.picker.extproc.events import (
    Limits,
    RequestHead,
    RequestReady,
)
from services.picker.flow_control.admission import FlowAdmission
from services.picker.metadata import REWRITE_HEADERS
from services.picker.parsers.parser import ParserFailed
from services.picker.pipeline import Pipeline
from services.picker.request import Content, Headers, Refusal, Request, Unparsable
from services.picker.responses.usage import NOTHING, Usage
from services.picker.settings.picker import PickerSettings
from services.picker.state.view import View

log = structlog.get_logger(__name__)

_NO_METADATA: Mapping[tuple[str, str], float] = {}
BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})


def request_limits(settings: PickerSettings) -> Limits:
    """How much of a request or response all conversations keep, as the settings say."""
    return Limits(
        request_body=settings.max_request_body,
        held_bodies=settings.max_held_bodies,
        header_bytes=settings.max_request_headers,
        header_count=settings.max_header_count,
        response_object=settings.max_response_object,
        model_name=settings.max_model_name,
        subset_entries=settings.max_subset_entries,
    )


@dataclass(repr=False, eq=False)
class RequestHandler:
    """What all streams of a picker share. `pipeline` is swapped when the configuration changes."""

    view: View
    pipeline: Pipeline
    ring: DecisionRing
    metrics: PickerMetrics
    _: KW_ONLY
    limits: Limits
    make_id: Callable[[], str]
    clock: Callable[[], float]
    observe: Callable[[], bool] = lambda: True
    """Where the proxy shows no responses: whether to request the next one only to observe it."""
    max_observed: int = 50
    """How many responses are observed at once."""
    log_decisions: bool = False
    flow: FlowAdmission | None = None
    """Where requests wait for room in the pool."""
    max_message_timeout: float = 120.0
    """Seconds for which proxies can be asked to wait for an answer; 0 if they can't."""
    budget: MemoryBudget = field(init=False)
    """Bytes of bodies that the streams keep from one message to the next."""
    response_budget: MemoryBudget = field(init=False)
    """The half of them that responses may take: their servers and readers decide how long they do."""
    observing: int = field(default=0, init=False)
    """Responses under way that were requested only to observe them."""
    open: int = field(default=0, init=False)
    """Streams under way."""

    def __post_init__(self) -> None:
        self.budget = MemoryBudget(self.limits.held_bodies, self.clock)
        self.response_budget = self.budget.part(self.limits.held_bodies // 2)

    def observes(self) -> bool:
        """Whether to request the next response only to observe it. Each of its chunks costs as much as a message of a
        request, so the number of observed responses is limited."""
        return self.observing < self.max_observed and self.observe()

    def prepare(self, ready: RequestReady, now: float) -> Prepared:
        """Reads the request. One whose body can't be read will be refused."""
        head, pipeline = ready.head, self.pipeline
        content, unreadable = Content(), None
        failures: list[ParserFailed] = []
        if _is_to_be_read(head):
            try:
                content = pipeline.parsers.parse(head.path, head.headers, ready.body, failures)
            except Unparsable as error:
                unreadable = Refusal(status=400, message=str(error), kept=error.kept)
            except ParserFailed as error:
                failures.append(error)
        too_long = _long_name(content.model, head.headers, self.limits.model_name)
        if too_long is not None:
            content, unreadable = Content(), too_long
        request = Request(
            id=head.request_id[:SHOWN],  # plugins may keep it until the response ends
            headers=head.headers,
            path=head.path,
            content=content,
            body_size=len(ready.body),
            body_withheld=head.withheld,
            subset=head.subset,
            received_at=head.received_at,
        )
        if unreadable is not None:
            return Prepared(request, now, unreadable)
        return pipeline.director.prepare(request, self.view, now, failures)

    def schedule(self, prepared: Prepared, now: float) -> Decision:
        """The decision on a request that has waited enough."""
        decision = self.pipeline.director.schedule(prepared, self.view, now)
        self.ring.add(decision.to_keep())
        return decision

    def ended(
        self,
        progress: Progress,
        summary: dict[str, Any] | None,
        seconds: float,
        usage: Usage = NOTHING,
        *,
        aborted: bool = False,
    ) -> Mapping[tuple[str, str], float]:
        """A request is over, `seconds` after its headers. Called once for each decision; its `summary` is logged, if
        there is one. Returns numbers for the proxy's metadata, by namespace and name."""
        metadata = _NO_METADATA
        if progress.hooks is not None:
            progress.failures = progress.hooks.completed(seconds, usage, aborted=aborted)
            metadata, progress.hooks = progress.hooks.metadata, None
        progress.seconds, progress.aborted, progress.placements = seconds, aborted, ()
        if summary is not None:
            progress.add_to(summary)
            log.info("request.decided", **summary)
        return metadata

    def __repr__(self) -> str:
        return f"<RequestHandler {self.open} open, {self.pipeline!r}>"


def _is_to_be_read(head: RequestHead) -> bool:
    """Whether to parse the body. A body that the proxy withholds or shows only in part isn't parsed. A request that
    should have a body and has none is: the parser refuses it."""
    if head.truncated or head.withheld:
        return False
    return head.has_body or head.method in BODY_METHODS


def _long_name(model: str, headers: Headers, limit: int) -> Refusal | None:
    """Refuses a model name that is too long to keep, to compare, or to put back into each event of a response."""
    if 4 * len(model) <= limit and not headers.first_of(REWRITE_HEADERS):
        return None
    for where, name in (("model", model), *((header, headers.get(header)) for header in REWRITE_HEADERS)):
        if 4 * len(name) > limit and (size := len(name.encode())) > limit:
            return Refusal(status=400, message=f"{where}: the model name has {size} bytes; the limit is {limit}")
    return None
