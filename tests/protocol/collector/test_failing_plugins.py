"""A third-party extractor that fails, in a running collector: the process lives, and says who failed."""

from collections.abc import Sequence
from typing import Any

import httpx

from services.collector.app import CollectorService
from services.collector.interfaces import PROMETHEUS_TEXT, Binding, Extractor, Finding, MetricsBinding
from services.collector.page.selection import Choice
from services.collector.settings import CollectorSettings
from services.simulator.app import simulator
from services.simulator.settings import SimulatorSettings
from shared.attributes import WAITING_QUEUE_SIZE, AttributeKey, AttributeMap
from shared.model import Endpoint
from shared.plugin import Registry
from tests.in_process import serving
from tests.nats import NatsServer
from tests.protocol.collector.harness import Frames, Owner, endpoint
from tests.waiting import eventually

GRADE = AttributeKey("Grade", "grade-extractor", float)
CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-scorer}
- {type: grade-extractor}
- {type: core-metrics-extractor}
- {type: metrics-data-source}
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors: [{pluginRef: grade-extractor}, {pluginRef: core-metrics-extractor}]
"""


class GradeBinding(MetricsBinding):
    """Says a text where a number is declared."""

    choices: Sequence[Choice] = ()

    def store(self, attributes: AttributeMap, at: float) -> bool:
        grade: Any = "A"
        return attributes.put(GRADE, grade, at)

    def findings(self) -> list[Finding]:
        return []


class GradeExtractor(Extractor):
    TYPE = "grade-extractor"
    INPUT = PROMETHEUS_TEXT
    PRODUCES = (GRADE,)

    def bind(self, endpoint: Endpoint) -> Binding:
        return GradeBinding()


async def test_a_text_where_a_number_is_declared_costs_that_attribute_and_no_collector(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    settings = CollectorSettings(nats_url=(nats.url,), id="one", admin_host="127.0.0.1", admin_port=0)
    service = CollectorService(settings, Registry([*Registry.installed(), GradeExtractor]))
    async with simulator(SimulatorSettings(port=0)) as model_server, serving(service):
        await owner.publish([endpoint("a", model_server.port)], CONFIG)
        labels = {"plugin": "grade-extractor"}
        count = service.registry.get_sample_value
        await eventually(lambda: (count("pointsman_plugin_failures_total", labels) or 0) > 3, "failures")
        before = service.sender.frames
        await eventually(lambda: service.sender.frames > before + 2, "frames all the same")
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) is not None, "the other extractor's values")
        assert frames.value("a", GRADE) is None
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.admin_port}", trust_env=False) as client:
            ready = await client.get("/readyz")
        assert ready.status_code == 200
        assert "'grade-extractor' has failed" in ready.json()["notes"]["plugins"]
        assert count("pointsman_plugin_failures_total", {"plugin": "core-metrics-extractor"}) == 0
