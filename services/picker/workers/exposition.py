"""Joins the metrics pages of several workers into one.

All workers write their pages with the same code, so the text of a series, `name{labels}`, is its identity: no label is
parsed. Counters and histograms are summed. Gauges are summed, or the least or greatest value counts, as `SUM` and
`MIN` say.

A sum must not fall: Prometheus would take that for a restart and count everything once more. So a worker that doesn't
answer counts as it last did, and one that has ended leaves its counts behind.
"""

import math
from collections.abc import Callable, Iterable, Mapping

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

    def join(self, values: Mapping[str, float]) -> None:
        """Join the values that another worker has."""
        own, joined = self.values, self._joined()
        for series, value in values.items():
            had = own.get(series)
            own[series] = value if had is None else joined(had, value)

    def _joined(self) -> Callable[[float, float], float]:
        if self.counts or self.name in SUM:
            return lambda value, other: value + other
        least = self.name in MIN or self.name.endswith(_CREATED)
        chosen = min if least else max
        return lambda value, other: other if math.isnan(value) else chosen(value, other)


Page = dict[str, Family]
"""Families by name."""


def parse(text: str) -> Page:
    """A page in Prometheus' text format, as `shared.service.pages.exposition` writes it. Families that it writes in
    several pieces are one. Only "\\n" ends a line: a label may have what Unicode calls line breaks, too."""
    page: Page = {}
    family = Family("", "", "")
    heading = ""
    for line in text.split("\n"):
        if line.startswith("# HELP "):
            heading = line
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            family = page.setdefault(name, Family(f"{heading}\n{line}\n", name, kind))
        elif line:
            series, _, value = line.rpartition(" ")
            family.values[series] = float(value)
    return page


def joined(pages: Iterable[Page]) -> Page:
    """One page that has the families of all."""
    total: Page = {}
    for page in pages:
        for name, family in page.items():
            total.setdefault(name, Family(family.heading, name, family.kind)).join(family.values)
    return total


def text(family: Family) -> str:
    """A family in the text format."""
    return family.heading + "".join(f"{series} {_number(value)}\n" for series, value in family.values.items())


class Counts:
    """The counters and histograms of workers that didn't answer this time, or have ended."""

    def __init__(self) -> None:
        self._latest: dict[str, Page] = {}
        self._ended: Page = {}

    def update(self, worker: str, page: Page) -> None:
        """A worker's page has arrived."""
        self._latest[worker] = page

    def ended(self, worker: str) -> None:
        """A worker has ended. The next one of this name begins at 0."""
        if (page := self._latest.pop(worker, None)) is not None:
            self._ended = joined([self._ended, _counters(page)])

    def missing(self, answered: Iterable[str]) -> list[Page]:
        """What counts beside the pages of the workers that have just answered. Of workers that have ended, only series
        that the others still have: a series ends with its endpoint or model."""
        present = set(answered)
        others = [_counters(page) for worker, page in self._latest.items() if worker not in present]
        for name, family in self._ended.items():
            known = [page[name].values for page in self._latest.values() if name in page]
            family.values = {
                series: value
                for series, value in family.values.items()
                if any(series in values for values in known) or not known
            }
        return [self._ended, *others]

    def __repr__(self) -> str:
        return f"<Counts of {sorted(self._latest)}, and {len(self._ended)} families of ended workers>"


def _counters(page: Page) -> Page:
    return {name: family for name, family in page.items() if family.counts}
