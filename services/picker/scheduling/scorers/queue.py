"""`queue-scorer` and `running-requests-size-scorer`: the fewer requests wait, or run, at an endpoint, compared with the
other candidates, the better."""

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.formulas import least_is_best
from services.picker.scheduling.interfaces import Scorer
from services.picker.state.layout import Floats, Rows
from shared.attributes import RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE


class QueueScorer(Scorer):
    """Relative queue length."""

    TYPE = "queue-scorer"
    CONSUMES = (WAITING_QUEUE_SIZE,)

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        return cycle.score_by(WAITING_QUEUE_SIZE, rows, least_is_best)


class RunningRequestsScorer(Scorer):
    """Relative batch size."""

    TYPE = "running-requests-size-scorer"
    CONSUMES = (RUNNING_REQUESTS_SIZE,)

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        return cycle.score_by(RUNNING_REQUESTS_SIZE, rows, least_is_best)
