"""`least-kv-cache-filter`: keeps the endpoints whose KV caches are near the emptiest."""

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.filters.least import least
from services.picker.scheduling.interfaces import Filter
from services.picker.state.layout import Rows
from shared.attributes import KV_CACHE_USAGE


class LeastKvCacheFilter(Filter):
    """`usage ≤ min + (max − min) / n`."""

    TYPE = "least-kv-cache-filter"
    BOUNDED = True
    CONSUMES = (KV_CACHE_USAGE,)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        return least(cycle, rows, KV_CACHE_USAGE)
