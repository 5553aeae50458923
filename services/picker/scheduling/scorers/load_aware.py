"""`load-aware-scorer`: the shorter an endpoint's queue, the better, on a fixed scale."""

from msgspec import Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.formulas import linear
from services.picker.scheduling.interfaces import Scorer
from services.picker.state.layout import Floats, Rows
from shared.attributes import WAITING_QUEUE_SIZE

BEST = 0.5
"""The score of an empty queue."""
DEFAULT_THRESHOLD = 128


class LoadAwareParameters(Struct, frozen=True, rename="camel"):
    """From which queue on an endpoint scores 0; zero or less means the default."""

    threshold: int = DEFAULT_THRESHOLD


class LoadAwareScorer(Scorer):
    """`0.5 · (1 − min(q, T) / T)`."""

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
