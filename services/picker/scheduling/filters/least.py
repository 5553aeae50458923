"""`least-queue-filter` and `least-kv-cache-filter`: keep the endpoints near the least value of an attribute, as the
decision tree of GIE 0.1 to 0.5 takes them."""

from math import floor

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.scheduling.staleness import split_by_staleness
from services.picker.state.layout import Rows
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, AttributeKey


class LeastQueueFilter(Filter):
    """`q ≤ min + ⌊(max − min) / n⌋`."""

    TYPE = "least-queue-filter"
    BOUNDED = True
    PREFERS = True
    CONSUMES = (WAITING_QUEUE_SIZE,)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        return _least(cycle, rows, WAITING_QUEUE_SIZE, whole_steps=True)


class LeastKvCacheFilter(Filter):
    """`usage ≤ min + (max − min) / n`."""

    TYPE = "least-kv-cache-filter"
    BOUNDED = True
    PREFERS = True
    CONSUMES = (KV_CACHE_USAGE,)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        return _least(cycle, rows, KV_CACHE_USAGE, whole_steps=False)


def _least(cycle: Cycle, rows: Rows, key: AttributeKey[float], *, whole_steps: bool) -> Rows:
    """The endpoints with a value up to `min + (max − min) / n`, n being the number of endpoints that are compared. At
    least one of them stays."""
    samples = cycle.read(key, rows)
    by_value, keep = split_by_staleness(cycle, samples)
    values = samples.values[by_value]
    if len(values):
        low, high = float(values.min()), float(values.max())
        step = (high - low) / len(values)
        keep = keep | (by_value & (samples.values <= low + (floor(step) if whole_steps else step)))
    kept: Rows = rows[keep]
    return kept
