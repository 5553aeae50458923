"""`lora-affinity-scorer`: best where the requested adapter is loaded, then where one more fits."""

import numpy as np

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Scorer
from services.picker.state.layout import Floats, Rows
from shared.attributes import ACTIVE_MODELS, MAX_ACTIVE_MODELS, WAITING_MODELS
from shared.plugin import Input

LOADED, ROOM, WAITED_FOR, NO_ROOM = 1.0, 0.8, 0.6, 0.0


class LoraAffinityScorer(Scorer):
    """1.0 loaded, else 0.8 with room for another adapter, else 0.6 when it is waited for there, else 0.0.

    An endpoint that reports no adapters at all has room for none.
    """

    TYPE = "lora-affinity-scorer"
    BOUNDED = True
    CONSUMES = (ACTIVE_MODELS, WAITING_MODELS, Input(MAX_ACTIVE_MODELS, optional=True))

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        loaded = cycle.view.columns.objects(ACTIVE_MODELS)
        waited = cycle.view.columns.objects(WAITING_MODELS)
        limit = cycle.read(MAX_ACTIVE_MODELS, rows)
        active, waiting = loaded.holders(cycle.model)[rows], waited.holders(cycle.model)[rows]
        held = loaded.counts[rows] + waited.counts[rows]
        room = held < np.nan_to_num(limit.values)
        scores: Floats = np.where(active, LOADED, np.where(room, ROOM, np.where(waiting, WAITED_FOR, NO_ROOM)))
        cycle.note("HeldModels", rows, held)
        fresh = loaded.at[rows] >= cycle.oldest()
        return scores if fresh.all() else cycle.fill(fresh, scores[fresh])
