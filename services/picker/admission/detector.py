"""What a saturation detector implements."""

from services.picker.scheduling.cycle import Cycle
from services.picker.state.layout import Rows
from shared.plugin import Plugin, Role, Tier


class SaturationDetector(Plugin):
    """Says how full the candidates are."""

    ROLES = frozenset({Role.SATURATION_DETECTOR})
    TIER = Tier.PICKER

    def saturation(self, cycle: Cycle, rows: Rows) -> float:
        """0 is empty, 1 and above is saturated; 1 when there are no endpoints."""
        raise NotImplementedError
