"""`queue-scorer`: the shorter an endpoint's queue, compared with the other candidates', the better."""

import numpy as np

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Scorer
from services.picker.state.layout import Floats, Rows
from shared.attributes import WAITING_QUEUE_SIZE


def least_is_best(values: Floats) -> Floats:
    """`(max − v) / (max − min)`; 1 for all when they are equal."""
    if not len(values):
        return values
    low, high = np.minimum.reduce(values), np.maximum.reduce(values)
    if high == low:
        return np.ones(len(values))
    scores: Floats = (high - values) / (high - low)
    return scores


class QueueScorer(Scorer):
    """Relative queue length."""

    TYPE = "queue-scorer"
    REQUIRES = (WAITING_QUEUE_SIZE,)

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        return cycle.score_by(WAITING_QUEUE_SIZE, rows, least_is_best)
