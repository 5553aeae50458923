"""`lora-affinity-scorer`: best where the requested adapter is loaded, then where one more fits."""

import numpy as np

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Scorer
from services.picker.state.layout import Floats, Rows
from shared.attributes import ACTIVE_MODELS, MAX_ACTIVE_MODELS, WAITING_MODELS

LOADED, ROOM, WAITED_FOR, NO_ROOM = 1.0, 0.8, 0.6, 0.0


class LoraAffinityScorer(Scorer):
    """1.0 loaded, else 0.8 with room for another adapter, else 0.6 when it is waited for there, else 0.0.

    An endpoint that reports no adapters at all has room for none.
    """

    TYPE = "lora-affinity-scorer"
    REQUIRES = (ACTIVE_MODELS, WAITING_MODELS)

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        columns = cycle.view.columns
        active = columns.members(ACTIVE_MODELS.wire, cycle.model)[rows]
        waiting = columns.members(WAITING_MODELS.wire, cycle.model)[rows]
        held = columns.counts(ACTIVE_MODELS.wire)[rows] + columns.counts(WAITING_MODELS.wire)[rows]
        limit = np.nan_to_num(columns.numbers(MAX_ACTIVE_MODELS.wire).values[rows])
        scores: Floats = np.select([active, held < limit, waiting], [LOADED, ROOM, WAITED_FOR], NO_ROOM)
        cycle.note(ACTIVE_MODELS.wire, rows, active.astype(np.float64))
        cycle.note(MAX_ACTIVE_MODELS.wire, rows, limit)
        return scores
