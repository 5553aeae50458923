"""`kv-cache-utilization-scorer`: the more of its KV cache an endpoint has free, the better."""

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Scorer
from services.picker.state.layout import Floats, Rows
from shared.attributes import KV_CACHE_USAGE


def free_share(usage: Floats) -> Floats:
    """`1 − usage`."""
    return 1.0 - usage


class KvCacheUtilizationScorer(Scorer):
    """`1 − usage`."""

    TYPE = "kv-cache-utilization-scorer"
    ALIASES = ("kv-cache-scorer",)
    CONSUMES = (KV_CACHE_USAGE,)

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        return cycle.score_by(KV_CACHE_USAGE, rows, free_share)
