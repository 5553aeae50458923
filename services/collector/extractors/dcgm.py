"""`dcgm-extractor`: the GPU utilization of an endpoint, from the metrics page of NVIDIA's DCGM exporter.

The busiest GPU counts, because a server waits for its slowest one. On a node's page the labels `pod` and `namespace`
identify the pod's GPUs; the exporter sets them in Kubernetes.
"""

from collections.abc import Sequence

from services.collector.interfaces import PROMETHEUS_TEXT, Extractor, Finding, MetricsBinding
from services.collector.page.scan import parse_labels
from services.collector.page.selection import MetricFallback, Outcome, Selector
from services.collector.page.spec import MetricSpec
from shared.attributes import GPU_UTILIZATION, AttributeMap
from shared.model import Endpoint
from shared.plugin import Stability

METRIC = "DCGM_FI_DEV_GPU_UTIL"
"""Percent of time in which the GPU was busy."""


class BusiestGpu(Selector):
    """Selects the greatest value, 0 to 100, of the series of the pod or without a pod.

    DCGM writes numbers far above 100 for unknown values.
    """

    def __init__(self, pod: str, namespace: str) -> None:
        super().__init__(MetricSpec(METRIC))
        self._pod = pod
        self._namespace = namespace
        self.blank = False
        """Whether a series of the pod had no valid value."""

    def clear(self) -> None:
        super().clear()
        self.blank = False

    def offer(self, labels: bytes, value: float, timestamp: float) -> None:
        self.seen = True
        percentage = 0 <= value <= 100
        if (self.found and (not percentage or value <= self.value)) or not self._is_of_pod(labels):
            return
        if percentage:
            self.found, self.value, self.labels_text = True, value, labels
        else:
            self.blank = True

    def _is_of_pod(self, text: bytes) -> bool:
        labels = parse_labels(text)
        pod, namespace = labels.get("pod"), labels.get("namespace")
        # In Prometheus an empty label equals a missing one.
        return not pod or (pod == self._pod and (not namespace or namespace == self._namespace))

    @property
    def outcome(self) -> Outcome:
        return Outcome.INVALID if self.blank and not self.found else super().outcome


class DcgmExtractor(Extractor):
    """The extractor of `GPUUtilization`."""

    TYPE = GPU_UTILIZATION.producer
    STABILITY = Stability.ALPHA
    INPUT = PROMETHEUS_TEXT
    DEFAULT_SOURCE = "dcgm-data-source"
    PRODUCES = (GPU_UTILIZATION,)

    def reads(self, endpoint: Endpoint) -> None:
        return None

    def bind(self, endpoint: Endpoint) -> "DcgmBinding":
        return DcgmBinding(endpoint)


class DcgmBinding(MetricsBinding):
    """Reads the pages with one endpoint's GPUs."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._selector = BusiestGpu(endpoint.pod_name, endpoint.namespace)
        self._fallback = MetricFallback([self._selector])
        self._outcome = Outcome.UNKNOWN

    @property
    def fallbacks(self) -> Sequence[MetricFallback]:
        return (self._fallback,)

    def store(self, attributes: AttributeMap, at: float) -> bool:
        selected = self._fallback.select()
        self._outcome = self._selector.outcome
        if selected is None:
            return False
        return attributes.put(GPU_UTILIZATION, selected.value / 100, at)

    def findings(self) -> list[Finding]:
        return [Finding(METRIC, GPU_UTILIZATION.name, self._outcome)]

    def __repr__(self) -> str:
        return f"<DcgmBinding {self._outcome}>"
