"""`queue-scorer`: the shorter an endpoint's queue, compared with the other candidates', the better."""

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.formulas import least_is_best
from services.picker.scheduling.interfaces import Scorer
from services.picker.state.layout import Floats, Rows
from shared.attributes import WAITING_QUEUE_SIZE


class QueueScorer(Scorer):
    """Relative queue length."""

    TYPE = "queue-scorer"
    CONSUMES = (WAITING_QUEUE_SIZE,)

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        return cycle.score_by(WAITING_QUEUE_SIZE, rows, least_is_best)
