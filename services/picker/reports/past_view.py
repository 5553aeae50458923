"""The view as a decision read it, for replays with another configuration.

A decision keeps what its plugins read, and the load in flight. What another configuration reads besides is shown as it
is now, or not at all; which of it was asked for is recorded, so that a replay can say what it doesn't know.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct

from services.picker.decision import Decision, ReplayInputs, RequestSummary
from services.picker.request import Content, Headers, Request
from services.picker.scheduling.cycle import Samples
from services.picker.state.columns import Columns
from services.picker.state.layout import Floats, Layout, Rows
from services.picker.state.lru_prefix_index import LruPrefixIndex
from services.picker.state.number_table import NumberColumn
from services.picker.state.object_column import ObjectColumn
from services.picker.state.slow_start import REASON as SLOW_START
from services.picker.state.view import View
from shared.attributes import AttributeKey

RECENT_BLOCKS = "RecentPrefixBlocks"


class PastDecision(Struct, frozen=True):
    """What a replay needs of a decision."""

    request: RequestSummary
    layout: Layout
    configuration: str
    target_model: str
    priority: int
    candidates: Rows | None
    picked: tuple[int, ...]
    samples: dict[str, Samples]
    inputs: ReplayInputs | None
    monotonic: float

    @classmethod
    def of(cls, decision: Decision) -> "PastDecision":
        return cls(
            decision.request,
            decision.layout,
            decision.configuration,
            decision.target_model,
            decision.priority,
            decision.candidates,
            decision.picked,
            decision.samples,
            decision.replay_inputs,
            decision.monotonic,
        )


class PresentView(Struct, frozen=True):
    """The current view, which stands in for what a decision hasn't kept."""

    layout: Layout
    columns: Mapping[str, NumberColumn | ObjectColumn]
    """By wire name."""
    recent: Floats
    """As `LruPrefixIndex.recent`."""
    at: float
    """Monotonic seconds."""


class UnrecordedInputs:
    """What plugins have asked for that a decision hasn't kept."""

    def __init__(self) -> None:
        self.current: set[str] = set()
        """Inputs that were shown as they are now."""
        self.missing: set[str] = set()
        """Those that were missing."""

    def clear(self) -> None:
        self.current.clear()
        self.missing.clear()

    def __repr__(self) -> str:
        return f"<UnrecordedInputs: {len(self.current)} as they are now, {len(self.missing)} missing>"


class UnrecordedHeaders(Headers):
    """Headers of a request that is over: none are kept."""

    __slots__ = ("_unrecorded",)

    def __init__(self, unrecorded: UnrecordedInputs) -> None:
        super().__init__()
        self._unrecorded = unrecorded

    def get(self, name: str, default: str = "") -> str:
        self._record_missing(name)
        return default

    def first_of(self, names: Iterable[str]) -> str:
        self._record_missing(*names)
        return ""

    def all(self, name: str) -> tuple[str, ...]:
        self._record_missing(name)
        return ()

    def names(self) -> Iterable[str]:
        self._unrecorded.missing.add("all headers")
        return ()

    def __contains__(self, name: object) -> bool:
        self._record_missing(str(name))
        return False

    def _record_missing(self, *names: str) -> None:
        self._unrecorded.missing.update(f"header {name}" for name in names)


class _Columns(Columns):
    """The attributes of a layout as one decision read them."""

    def __init__(self, now: PresentView, layout: Layout, unrecorded: UnrecordedInputs) -> None:
        super().__init__()
        self._now, self._past, self._unrecorded = now, layout, unrecorded
        self._decision: PastDecision | None = None
        self._elapsed = 0.0
        self._shown: dict[str, NumberColumn] = {}
        self._current: dict[str, NumberColumn | ObjectColumn] = {}

    def show(self, decision: PastDecision) -> None:
        """Have the attributes as they were at this decision."""
        self._decision, self._elapsed = decision, self._now.at - decision.monotonic
        self._shown.clear()

    def numbers(self, name: str) -> NumberColumn:
        assert self._decision is not None
        shown = self._shown.get(name)
        if shown is None:
            shown = self._shown[name] = self._numbers_of(name, self._decision)
        return shown

    def _numbers_of(self, name: str, decision: PastDecision) -> NumberColumn:
        kept = decision.samples.get(name)
        if kept is not None and kept.at is not None and len(kept.rows) == len(self._past):
            values, at = np.empty(len(self._past)), np.empty(len(self._past))
            values[kept.rows], at[kept.rows] = kept.values, kept.at
            return NumberColumn(values, at)
        current = self._current.get(name)
        if current is None:
            current = self._current[name] = self._numbers_of_now(name)
        assert isinstance(current, NumberColumn)
        values, at = current.values.copy(), current.at - self._elapsed  # as old as now
        known: Rows = np.zeros(0, np.intp)
        if kept is not None and kept.at is not None:
            known = kept.rows
            values[known], at[known] = kept.values, kept.at
        if decision.candidates is None or not np.isin(decision.candidates, known).all():
            self._unrecorded.current.add(name)
        return NumberColumn(values, at)

    def _numbers_of_now(self, name: str) -> NumberColumn:
        values, at = np.full(len(self._past), np.nan), np.full(len(self._past), -np.inf)
        here, there = _same_servers(self._past, self._now.layout)
        live = self._now.columns.get(name)
        if isinstance(live, NumberColumn):
            values[here], at[here] = live.values[there], live.at[there]
        return NumberColumn(values, at)

    def objects(self, key: AttributeKey[object]) -> ObjectColumn:
        self._unrecorded.current.add(key.wire)
        column = self._current.get(key.wire)
        if not isinstance(column, ObjectColumn):
            size, servers = len(self._past), _same_servers(self._past, self._now.layout)
            live = self._now.columns.get(key.wire)
            column = live.moved(size, *servers) if isinstance(live, ObjectColumn) else ObjectColumn(size)
            self._current[key.wire] = column
        column.read_as(key.kind)
        return column


class _Prefixes(LruPrefixIndex):
    """No prompts: only how many blocks are new to each endpoint, as now."""

    def __init__(self, recent: Floats, unrecorded: UnrecordedInputs) -> None:
        self._unrecorded = unrecorded
        super().__init__()
        self._recent = recent

    @property
    def recent(self) -> Floats:
        self._unrecorded.current.add(RECENT_BLOCKS)
        return self._recent

    @recent.setter
    def recent(self, recent: Floats) -> None:
        self._recent = recent


class PastView(View):
    """The view of one layout, as the decision that it shows read it."""

    def __init__(self, now: PresentView, layout: Layout, unrecorded: UnrecordedInputs) -> None:
        super().__init__()
        self._past = layout
        recent = np.zeros(len(layout))
        here, there = _same_servers(layout, now.layout)
        recent[here] = now.recent[there]
        self.columns = self._columns = _Columns(now, layout, unrecorded)
        self.prefixes = _Prefixes(recent, unrecorded)

    @property
    def layout(self) -> Layout:
        return self._past

    def show(self, decision: PastDecision, inputs: ReplayInputs) -> None:
        """Be as it was at this decision."""
        self._columns.show(decision)
        load = self.in_flight
        load.requests, load.tokens = inputs.in_flight.tables()
        load.at_sample = load.requests
        load.count, load.token_count = float(load.requests.sum()), float(load.tokens.sum())
        self.health.unhealthy = {row: why for row, why in inputs.ranked_last.items() if why != SLOW_START}


def _same_servers(layout: Layout, now: Layout) -> tuple[Rows, Rows]:
    """(rows, rows of now) of the servers that both layouts have."""
    return (layout.all_rows, layout.all_rows) if layout is now else layout.moved_from(now)


def request_of(decision: PastDecision, inputs: ReplayInputs, unrecorded: UnrecordedInputs) -> Request:
    """The request, as far as it was kept."""
    kept = decision.request
    content = Content(
        api=kept.api,
        model=kept.model,
        stream=kept.stream,
        prompt_tokens=inputs.prompt_tokens,
        multimodal=inputs.multimodal,
    )
    return Request(
        id=kept.id,
        headers=UnrecordedHeaders(unrecorded),
        path=kept.path,
        content=content,
        body_size=kept.body_bytes,
        received_at=decision.monotonic,
    )
