"""Scorers of the load that model servers report: `queue-scorer`, `running-requests-size-scorer`,
`kv-cache-utilization-scorer` and `load-aware-scorer`."""

from msgspec import Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.formulas import least_is_best, linear
from services.picker.scheduling.interfaces import Scorer
from services.picker.state.layout import Floats, Rows
from shared.attributes import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE

BEST = 0.5
"""The score of an empty queue on a fixed scale."""
DEFAULT_THRESHOLD = 128


class QueueScorer(Scorer):
    """The shorter an endpoint's queue, compared with the other candidates', the better."""

    TYPE = "queue-scorer"
    CONSUMES = (WAITING_QUEUE_SIZE,)

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        return cycle.score_by(WAITING_QUEUE_SIZE, rows, least_is_best)


class RunningRequestsScorer(Scorer):
    """The fewer requests an endpoint runs, compared with the others, the better."""

    TYPE = "running-requests-size-scorer"
    CONSUMES = (RUNNING_REQUESTS_SIZE,)

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        return cycle.score_by(RUNNING_REQUESTS_SIZE, rows, least_is_best)


def free_share(usage: Floats) -> Floats:
    """`1 − usage`."""
    return 1.0 - usage


class KvCacheUtilizationScorer(Scorer):
    """The more of its KV cache an endpoint has free, the better."""

    TYPE = "kv-cache-utilization-scorer"
    ALIASES = ("kv-cache-scorer",)
    CONSUMES = (KV_CACHE_USAGE,)

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        return cycle.score_by(KV_CACHE_USAGE, rows, free_share)


class LoadAwareParameters(Struct, frozen=True, rename="camel"):
    """From which queue on an endpoint scores 0; zero or less means the default."""

    threshold: int = DEFAULT_THRESHOLD


class LoadAwareScorer(Scorer):
    """The shorter an endpoint's queue, the better, on a fixed scale: `0.5 · (1 − min(q, T) / T)`."""

    TYPE = "load-aware-scorer"
    BOUNDED = True
    CONSUMES = (WAITING_QUEUE_SIZE,)
    Parameters = LoadAwareParameters
    parameters: LoadAwareParameters

    def __init__(self, name: str, parameters: LoadAwareParameters | None = None) -> None:
        super().__init__(name, parameters)
        threshold = self.parameters.threshold if self.parameters.threshold > 0 else DEFAULT_THRESHOLD
        self._place = linear(0.0, float(threshold), least=True)

    def _formula(self, queues: Floats) -> Floats:
        return BEST * self._place(queues)

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        return cycle.score_by(WAITING_QUEUE_SIZE, rows, self._formula)
