"""A picker's last decisions on their way to the process that replays them: pickles, one after the other, each made in
less than a millisecond.

Only a picker writes them, to its own child, so what is unpickled is its own. An endpoint is sent once, however many
layouts have it.
"""

import pickle
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from services.picker.decision import Decision
from services.picker.reports.past_view import PastDecision, PresentView
from services.picker.scheduling.cycle import Samples
from services.picker.state.layout import Floats, Layout, Rows
from services.picker.state.number_table import NumberColumn
from services.picker.state.object_column import NEVER, ObjectColumn
from services.picker.state.view import View
from shared.config.schema import Bounds
from shared.model import Endpoint

ENDPOINTS = 100
"""Of one piece."""
ROWS = 256
"""Of one piece of a column of objects …"""
WEIGHT = 256 * 1024
"""… and their bytes, about."""
_NO_LAYOUT = Layout()


class ReplayTask(Struct, frozen=True, kw_only=True):
    """The task for the decisions that follow."""

    text: str
    """The document."""
    running: str
    """The document that is at work."""
    allow_experimental: bool
    bounds: Bounds
    until: float
    """Monotonic seconds."""


class Unsent(Struct, frozen=True):
    """The last message: how many decisions aren't sent, because the time is over."""

    decisions: int


class _Endpoints(Struct, frozen=True):
    endpoints: tuple[Endpoint, ...]


class _Layout(Struct, frozen=True):
    """One more layout, of some of the endpoints."""

    endpoints: Rows


class _Objects(Struct, frozen=True):
    """Some values of a column that aren't numbers."""

    name: str
    start: int
    values: list[Any]
    at: Floats


class _Samples(Struct, frozen=True):
    """Of the next decision."""

    name: str
    samples: Samples


class _Numbers(Struct, frozen=True):
    name: str
    values: Floats
    at: Floats


class _Present(Struct, frozen=True):
    """The view as it is now, after its columns."""

    layout: int
    recent: Floats
    at: float


class _Decision(Struct, frozen=True):
    """One decision, after its samples."""

    layout: int
    decision: PastDecision


class Recorder:
    """Makes messages of decisions, and of the view as it is when it is made."""

    def __init__(self, view: View, now: float) -> None:
        layout, columns = view.layout, view.columns.known().items()
        self._numbers = {
            name: (column.values, column.at) for name, column in columns if isinstance(column, NumberColumn)
        }
        self._objects = {name: column.reported() for name, column in columns if isinstance(column, ObjectColumn)}
        self._layout, self._recent, self._now = layout, view.prefixes.recent.copy(), now
        self._endpoints: dict[int, int] = {}
        """By `id` of the endpoint. The layouts, which are kept, keep them."""
        self._layouts: dict[int, tuple[int, Layout]] = {}

    def present(self) -> Iterator[bytes]:
        """The view as it was."""
        yield from self._sent(self._layout)
        for name, (values, at) in self._numbers.items():
            yield packed(_Numbers(name, values, at))
        for name, (raw, weights, sampled) in self._objects.items():
            for start, end in _runs(weights):
                yield _packed_objects(_Objects(name, start, raw[start:end], sampled[start:end]))
        yield packed(_Present(self._layouts[id(self._layout)][0], self._recent, self._now))

    def decision(self, decision: Decision) -> Iterator[bytes]:
        """One decision."""
        past = PastDecision.of(decision)
        if past.inputs is not None and past.candidates is not None:
            yield from self._sent(past.layout)
            for name, samples in past.samples.items():
                yield packed(_Samples(name, samples))
            inputs = replace(past.inputs, ranked_last=dict(past.inputs.ranked_last))
            number = self._layouts[id(past.layout)][0]
            yield packed(_Decision(number, replace(past, layout=_NO_LAYOUT, samples={}, inputs=inputs)))
        else:
            yield packed(_Decision(-1, replace(past, layout=_NO_LAYOUT, samples={}, inputs=None, candidates=None)))

    def _sent(self, layout: Layout) -> Iterator[bytes]:
        """What isn't sent yet of a layout."""
        if id(layout) in self._layouts:
            return
        known, endpoints = self._endpoints, layout.endpoints
        for start in range(0, len(endpoints), ENDPOINTS):
            new = [endpoint for endpoint in endpoints[start : start + ENDPOINTS] if id(endpoint) not in known]
            if new:
                known.update({id(endpoint): number for number, endpoint in enumerate(new, len(known))})
                yield packed(_Endpoints(tuple(new)))
        self._layouts[id(layout)] = len(self._layouts), layout
        yield packed(_Layout(np.fromiter((known[id(endpoint)] for endpoint in endpoints), np.intp, len(endpoints))))

    def __repr__(self) -> str:
        return f"<Recorder: {len(self._endpoints)} endpoints and {len(self._layouts)} layouts sent>"


class Records:
    """Reads these messages."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._endpoints: list[Endpoint] = []
        self._layouts: list[Layout] = []

    def task(self) -> ReplayTask:
        """The first message. Raises EOFError when it isn't sent whole, as the others do."""
        task: ReplayTask = pickle.load(self._source)
        return task

    def present(self) -> PresentView:
        columns: dict[str, NumberColumn | ObjectColumn] = {}
        while not isinstance(message := self._next(), _Present):
            if isinstance(message, _Numbers):
                columns[message.name] = NumberColumn(message.values, message.at)
            elif isinstance(message, _Objects):
                column = columns.setdefault(message.name, ObjectColumn(len(self._layouts[0])))
                assert isinstance(column, ObjectColumn)
                for row, (value, at) in enumerate(zip(message.values, message.at.tolist(), strict=True), message.start):
                    column.place(row, value, at)
        return PresentView(self._layouts[message.layout], columns, message.recent, message.at)

    def decisions(self) -> Iterator[PastDecision | Unsent]:
        """The decisions; `Unsent` comes last."""
        samples: dict[str, Samples] = {}
        while not isinstance(message := self._next(), Unsent):
            if isinstance(message, _Samples):
                samples[message.name] = message.samples
            elif isinstance(message, _Decision):
                layout = self._layouts[message.layout] if message.layout >= 0 else _NO_LAYOUT
                yield replace(message.decision, layout=layout, samples=samples)
                samples = {}
        yield message

    def _next(self) -> Any:
        message = pickle.load(self._source)
        if isinstance(message, _Endpoints):
            self._endpoints += message.endpoints
        elif isinstance(message, _Layout):
            self._layouts.append(Layout([self._endpoints[number] for number in message.endpoints.tolist()]))
        return message

    def __repr__(self) -> str:
        return f"<Records: {len(self._endpoints)} endpoints, {len(self._layouts)} layouts>"


def packed(message: Struct) -> bytes:
    """One message."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def _packed_objects(message: _Objects) -> bytes:
    """Values that plugins of this picker make may be of any kind: those that can't be sent are absent."""
    try:
        return packed(message)
    except Exception:  # noqa: BLE001 - foreign objects
        size = len(message.values)
        return packed(_Objects(message.name, message.start, [None] * size, np.full(size, NEVER)))


def _runs(weights: list[int]) -> Iterator[tuple[int, int]]:
    """Rows that are sent together: (first, after the last)."""
    start = weight = 0
    for row, row_weight in enumerate(weights):
        weight += row_weight
        if weight >= WEIGHT or row - start >= ROWS:
            yield start, row + 1
            start, weight = row + 1, 0
    if start < len(weights):
        yield start, len(weights)
