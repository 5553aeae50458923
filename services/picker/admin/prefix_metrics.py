"""Metrics of the prefix placements that pickers share."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.picker.admin.families import family
from services.picker.state.prefix_peers import PrefixPeers
from shared.bus.codec import SenderLog


class PrefixMetrics(Collector):
    """Read when scraped."""

    def __init__(self, peers: PrefixPeers, incompatible: SenderLog, clock: Callable[[], float]) -> None:
        self._peers, self._incompatible, self._clock = peers, incompatible, clock

    def collect(self) -> Iterator[Metric]:
        peers = self._peers
        text = "Other pickers whose prefix placements are known"
        count = peers.listening(self._clock())
        yield from family(GaugeMetricFamily, "pointsman_picker_prefix_peers", text, (), [((), count)])
        for name, text, value in (
            ("peer_batches", "Batches of other pickers' prefix placements that were applied", peers.batches),
            ("peer_blocks", "Prompt blocks in these batches", peers.blocks),
            ("gaps", "How often batches of another picker were missing, and asked for", peers.gaps),
            ("dumps", "Dumps of prefix placements that were taken from other pickers", peers.dumps),
            ("incompatible_batches", "Batches of pickers that hash prompts differently", self._incompatible.total),
        ):
            yield from family(CounterMetricFamily, f"pointsman_picker_prefix_{name}", text, (), [((), value)])

    def __repr__(self) -> str:
        return f"<PrefixMetrics of {self._peers!r}>"
