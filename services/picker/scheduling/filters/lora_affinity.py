"""`lora-affinity-filter`: keeps the endpoints that have the requested adapter; now and then, one that has room for it.

Without the exceptions, an adapter would never spread to further endpoints.
"""

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.state.layout import Rows
from services.picker.state.object_column import NEVER
from shared.attributes import ACTIVE_MODELS, MAX_ACTIVE_MODELS, WAITING_MODELS
from shared.plugin import Input


class LoraAffinityFilterParameters(Struct, frozen=True, rename="camel"):
    """The probability with which endpoints that have the adapter go before those that have room."""

    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.999


class LoraAffinityFilter(Filter):
    """Those where the adapter is loaded or waited for, or those with room for one more. None if there are neither."""

    TYPE = "lora-affinity-filter"
    BOUNDED = True
    CONSUMES = (ACTIVE_MODELS, WAITING_MODELS, Input(MAX_ACTIVE_MODELS, optional=True))
    Parameters = LoraAffinityFilterParameters
    parameters: LoraAffinityFilterParameters

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        loaded = cycle.view.columns.objects(ACTIVE_MODELS)
        waited = cycle.view.columns.objects(WAITING_MODELS)
        limit = np.nan_to_num(cycle.read(MAX_ACTIVE_MODELS, rows).values)
        at = loaded.at[rows]
        known = (at > NEVER) & (at >= cycle.oldest())
        if not known.any():
            known = at > NEVER
        has = known & (loaded.holders(cycle.model) | waited.holders(cycle.model))[rows]
        held = loaded.counts[rows] + waited.counts[rows]
        room = known & ~has & (held < limit)
        cycle.note("HeldModels", rows, held)
        if has.any() and room.any():
            chosen = has if cycle.random.random() < self.parameters.threshold else room
        else:
            chosen = has | room
        if cycle.stale.policy == "ignore" and chosen.any():
            chosen = chosen | ~known
        kept: Rows = rows[chosen]
        return kept
