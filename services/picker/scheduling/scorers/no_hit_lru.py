"""`no-hit-lru-scorer`: spreads prompts that no endpoint has cached: the longer ago an endpoint got one, the better.

It remembers when each endpoint last got such a prompt, as a column in the layout's order.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from services.picker.scheduling.cycle import PREFIX_MATCH, Cycle
from services.picker.scheduling.interfaces import PreRequest, Scorer
from services.picker.scheduling.named_attribute import prefix_match
from services.picker.state.layout import Floats, Layout, Rows
from shared.plugin import Input, Role

WARM = 0.5
"""The score of every endpoint where some endpoint has the prompt."""
DEFAULT_SIZE = 1024
PREFILL = "prefill"
"""The profile whose pick gets the prompt, too."""


class NoHitLruParameters(Struct, frozen=True, rename="camel"):
    """How many endpoints are remembered; zero or less means the default."""

    lru_size: int = DEFAULT_SIZE
    prefix_match_info_producer_name: str = ""
    prefix_plugin_type: Any = None
    prefix_plugin_name: Any = None
    """Both were read by older generations, and have no effect."""


class NoHitLruScorer(Scorer, PreRequest):
    """Endpoints in the order of their last uncached prompt: those that never got one, then the oldest first, evenly
    from 1 to 0."""

    TYPE = "no-hit-lru-scorer"
    ROLES = frozenset({Role.SCORER, Role.PRE_REQUEST})
    BOUNDED = True
    Parameters = NoHitLruParameters
    parameters: NoHitLruParameters

    def __init__(self, name: str, parameters: NoHitLruParameters | None = None) -> None:
        super().__init__(name, parameters)
        size = self.parameters.lru_size
        self._size = size if size > 0 else DEFAULT_SIZE
        self._layout = Layout()
        self._used: Floats = np.zeros(0)
        """The number of the last uncached prompt of each endpoint; 0: none is remembered."""
        self._prompts = 0

    @classmethod
    def consumes(cls, parameters: NoHitLruParameters) -> tuple[Input, ...]:
        return (prefix_match(parameters.prefix_match_info_producer_name),)

    @classmethod
    def deprecations(cls, parameters: NoHitLruParameters) -> list[str]:
        former = {"prefixPluginType": parameters.prefix_plugin_type, "prefixPluginName": parameters.prefix_plugin_name}
        given = [name for name, value in former.items() if value is not None]
        return [f"{name} is deprecated, and has no effect; leave it out" for name in given]

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        size = len(rows)
        match = cycle.get(PREFIX_MATCH)
        if match is not None and match.matched.take(rows).any():
            return np.full(size, WARM)
        cycle.remember(self, True)
        used = self._column(cycle.layout)
        mine = used.take(rows)
        cycle.note("LastUncachedPrompt", rows, mine)
        if size <= 1:
            return np.ones(size)
        never = mine == 0.0
        order = np.sort(used[used > 0.0])
        place = np.where(never, np.cumsum(never) - 1, np.count_nonzero(never) + np.searchsorted(order, mine))
        return np.maximum(1.0 - place / (size - 1), 0.0)

    def pre_request(self, cycle: Cycle, picked: tuple[int, ...]) -> Mapping[str, str]:
        if cycle.remembered.get(self):
            prefill = cycle.runs.get(PREFILL)
            self._use(cycle.layout, picked[0])
            for row in prefill.picked[:1] if prefill is not None else ():
                self._use(cycle.layout, row)
        return {}

    def _use(self, layout: Layout, row: int) -> None:
        used = self._column(layout)
        self._prompts += 1
        used[row] = self._prompts
        if np.count_nonzero(used) > self._size:
            used[np.where(used > 0.0, used, np.inf).argmin()] = 0.0

    def _column(self, layout: Layout) -> Floats:
        if layout is not self._layout:
            there = layout.rows_in(self._layout)
            self._used = np.where(there >= 0, np.append(self._used, 0.0)[there], 0.0)
            self._layout = layout
        return self._used
