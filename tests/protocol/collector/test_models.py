"""Which models each server of a mixed pool serves: asked beside the metrics, and published with them."""

from services.simulator.app import simulator
from services.simulator.settings import EngineType, SimulatorSettings
from shared.attributes import SERVED_MODELS, WAITING_QUEUE_SIZE
from tests.nats import NatsServer
from tests.protocol.collector.harness import Frames, Owner, collector, endpoint
from tests.waiting import eventually

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: models-data-source
  parameters: {interval: 200ms}
- type: models-data-extractor
"""


async def test_base_models_and_adapters_of_a_mixed_pool_are_published(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    tuned = SimulatorSettings(port=0, models=("llama",), adapters=("sql", "law"), drain_timeout=1)
    plain = SimulatorSettings(port=0, models=("qwen", "qwen-alias"), engine=EngineType.SGLANG, drain_timeout=1)
    async with simulator(tuned) as one, simulator(plain) as other, collector(nats.url):
        await owner.publish([endpoint("one", one.port), endpoint("other", other.port, engine="sglang")], CONFIG)
        await eventually(lambda: frames.value("one", SERVED_MODELS) is not None, "the first list")
        await eventually(lambda: frames.value("other", SERVED_MODELS) is not None, "the second list")
        assert frames.value("one", SERVED_MODELS) == ["llama", "sql", "law"]
        assert frames.value("other", SERVED_MODELS) == ["qwen", "qwen-alias"]
        await eventually(lambda: frames.value("other", WAITING_QUEUE_SIZE) == 0.0, "metrics as ever")
