"""Joins the metrics pages of several workers into one.

All workers write their pages with the same code, so the text of a series, `name{labels}`, is its identity: no label is
parsed. Counters and histograms are summed. Gauges are summed, or the least or greatest value counts, as `SUM` and
`MIN` say.

A sum must not fall: Prometheus would take that for a restart and count everything once more. So a worker that doesn't
answer counts as it last did, and one that has ended leaves its counts behind.

Pages may have a hundred thousand series, of which clients can cause half. So they are read and joined in steps, as
iterators whose values mean nothing: the process has other work to do in between.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from itertools import islice

from msgspec import Struct, field
from prometheus_client import utils

_number: Callable[[float], str] = utils.floatToGoString
SUM = frozenset(
    (
        "process_virtual_memory_bytes",
        "process_resident_memory_bytes",
        "pointsman_picker_own_inflight_requests",
        "pointsman_picker_prefix_blocks",
        "pointsman_picker_held_body_bytes",
        "pointsman_ext_proc_open_streams",
        "llm_d_epp_request_running",
        "llm_d_epp_prefix_indexer_size",
        "llm_d_epp_flow_control_queue_size",
        "llm_d_epp_flow_control_queue_bytes",
        "inference_objective_running_requests",
        "inference_extension_prefix_indexer_size",
        "inference_extension_flow_control_queue_size",
        "inference_extension_flow_control_queue_bytes",
    )
)
"""Gauges of what each worker has for itself."""
MIN = frozenset(
    (
        "process_start_time_seconds",
        "process_max_fds",
        "pointsman_bus_connected",
        "pointsman_view_synced",
        "pointsman_picker_endpoint_healthy",
        "pointsman_certificate_expiration_timestamp_seconds",
    )
)
"""Gauges whose small values are the bad ones, and the start. Of all others the greatest value counts: what all workers
know of the pool and of other pickers, ages, shares of a limit."""
STEP = 2000
"""Series of a step: a millisecond or two."""
_CREATED = "_created"
"""The end of the name of a family that tells since when another one counts."""
_SUMMED = ("counter", "histogram", "summary")


class Family(Struct):
    """A metric family of a page."""

    heading: str
    """The lines HELP and TYPE."""
    name: str
    kind: str
    """Its type in the text format."""
    values: dict[str, float] = field(default_factory=dict)
    """By `name{labels}`."""

    @property
    def counts(self) -> bool:
        return self.kind in _SUMMED

    def join(self, values: Mapping[str, float]) -> Iterator[None]:
        """Join the values that another worker has, in steps."""
        own, joined = self.values, self._joined()
        rest = iter(values.items())
        while some := list(islice(rest, STEP)):
            for series, value in some:
                had = own.get(series)
                own[series] = value if had is None else joined(had, value)
            yield

    def _joined(self) -> Callable[[float, float], float]:
        if self.counts or self.name in SUM:
            return lambda value, other: value + other
        least = self.name in MIN or self.name.endswith(_CREATED)
        chosen = min if least else max
        return lambda value, other: other if math.isnan(value) else chosen(value, other)


Page = dict[str, Family]
"""Families by name."""


def parsing(text: bytes, page: Page) -> Iterator[None]:
    """Read a page into `page` in steps. Families that are written in several pieces are one. Only "\\n" ends a line: a
    label may have what Unicode calls line breaks, too."""
    family = Family("", "", "")
    heading = ""
    for number, encoded in enumerate(BytesIO(text), 1):
        line = encoded.decode().removesuffix("\n")
        if line.startswith("# HELP "):
            heading = line
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            family = page.setdefault(name, Family(f"{heading}\n{line}\n", name, kind))
        elif line:
            series, _, value = line.rpartition(" ")
            family.values[series] = float(value)
        if number % STEP == 0:
            yield


def joining(pages: Iterable[Page], total: Page) -> Iterator[None]:
    """Join pages into `total` in steps."""
    for page in pages:
        for name, family in page.items():
            yield from total.setdefault(name, Family(family.heading, name, family.kind)).join(family.values)


def text(family: Family) -> str:
    """A family in the text format."""
    return family.heading + "".join(f"{series} {_number(value)}\n" for series, value in family.values.items())


class Counts:
    """The counters and histograms of workers that didn't answer this time, or have ended."""

    def __init__(self) -> None:
        self._latest: dict[str, Page] = {}
        self._ended: Page = {}
        self._just_ended: deque[Page] = deque()
        """Pages that are to be joined to it."""

    def copy(self) -> "Counts":
        """The counts as they are now: a worker that ends later is in them under its name."""
        counts = Counts()
        counts._latest, counts._ended, counts._just_ended = self._latest.copy(), self._ended, self._just_ended.copy()
        return counts

    def update(self, worker: str, page: Page) -> None:
        """A worker's page has arrived."""
        self._latest[worker] = _counters(page)

    def ended(self, worker: str) -> None:
        """A worker has ended. The next one of this name begins at 0."""
        if (page := self._latest.pop(worker, None)) is not None:
            self._just_ended.append(page)

    def pruning(self) -> Iterator[None]:
        """Join what workers that have ended had, in steps, and forget what the others don't have any more: a series
        ends with its endpoint or model."""
        while self._just_ended:
            page, total = self._just_ended[0], Page()
            yield from joining([self._ended, page], total)
            if self._just_ended and self._just_ended[0] is page:  # or else another scrape has joined it meanwhile
                self._just_ended.popleft()
                self._ended = total
        for name, family in list(self._ended.items()):
            known = [page[name].values for page in self._latest.values() if name in page]
            if known:
                kept: dict[str, float] = {}
                rest = iter(family.values.items())
                while some := list(islice(rest, STEP)):
                    kept |= {series: value for series, value in some if any(series in values for values in known)}
                    yield
                family.values = kept

    def missing(self, answered: Iterable[str]) -> list[Page]:
        """What counts beside the pages of the workers that have just answered."""
        present = set(answered)
        return [
            self._ended,
            *self._just_ended,
            *(page for worker, page in self._latest.items() if worker not in present),
        ]

    def __repr__(self) -> str:
        return f"<Counts of {sorted(self._latest)}, and {len(self._ended)} families of ended workers>"


def _counters(page: Page) -> Page:
    return {name: family for name, family in page.items() if family.counts}
