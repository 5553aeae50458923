"""`sheddable-eviction-filter`: requests of a negative priority may be evicted."""

from services.picker.flow_control.interfaces import EvictionFilterPolicy, Running
from shared.plugin import Stability


class SheddableEvictionFilter(EvictionFilterPolicy):
    """`priority < 0`."""

    TYPE = "sheddable-eviction-filter"
    STABILITY = Stability.ALPHA

    def accepts(self, running: Running) -> bool:
        return running.priority < 0
