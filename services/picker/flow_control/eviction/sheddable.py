"""`sheddable-eviction-filter`: requests of a negative priority may be evicted."""

from services.picker.flow_control.interfaces import EvictionFilterPolicy, Running


class SheddableEvictionFilter(EvictionFilterPolicy):
    """`priority < 0`."""

    TYPE = "sheddable-eviction-filter"

    def accepts(self, running: Running) -> bool:
        return running.priority < 0
