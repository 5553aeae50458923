"""`served-model-filter`: keeps the endpoints that serve the model which the request is really for."""

from typing import Literal

import numpy as np
from msgspec import Struct

from services.picker.request import unknown_model
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.state.layout import Rows
from services.picker.state.object_column import NEVER
from shared.attributes import SERVED_MODELS


class ServedModelParameters(Struct, frozen=True, rename="camel"):
    """Parameters."""

    on_missing: Literal["LastResort", "Pass", "Fail"] = "LastResort"
    """What of endpoints whose models nobody knows: they stay where no endpoint is known to serve the model, always, or
    never."""
    fallback_on_empty: bool = False
    """Whether all stay where none would."""


class ServedModelFilter(Filter):
    """What an endpoint serves is known by name, so it costs a request a look-up and no comparison of lists.

    How old a list is doesn't matter: a server that stops answering doesn't stop serving its models, and one that has
    gone is no candidate.
    """

    TYPE = "served-model-filter"
    BOUNDED = True
    CONSUMES = (SERVED_MODELS,)
    Parameters = ServedModelParameters
    parameters: ServedModelParameters

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        if not cycle.model:
            return rows  # a request that names no model can be for any
        lists = cycle.view.columns.objects(SERVED_MODELS)
        serves = lists.holders(cycle.model)[rows]
        known = lists.at[rows] > NEVER
        cycle.note("ServesModel", rows, np.where(known, serves, np.nan))
        keep = serves
        if self.parameters.on_missing == "Pass" or (self.parameters.on_missing == "LastResort" and not serves.any()):
            keep = serves | ~known
        kept: Rows = rows[keep]
        if len(kept):
            return kept
        if self.parameters.fallback_on_empty:
            return rows
        # What other filters have left out, for their own reasons, serves the model all the same.
        every = cycle.candidates
        if not lists.holders(cycle.model)[every].any() and (lists.at[every] > NEVER).all():
            cycle.refusal = unknown_model(cycle.model, "served by no model server of this pool")
        return kept
