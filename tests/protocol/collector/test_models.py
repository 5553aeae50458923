"""Which models each server of a mixed pool serves: asked beside the metrics, and published with them."""

import asyncio
import json

from services.collector.page.selection import Outcome
from services.simulator.app import simulator
from services.simulator.settings import EngineType, SimulatorSettings
from shared.attributes import SERVED_MODELS, WAITING_QUEUE_SIZE
from tests.nats import NatsServer
from tests.protocol.collector.harness import Frames, OddServer, Owner, answer, collector, endpoint, eventually, vllm

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: models-data-source
  parameters: {interval: 200ms}
- type: models-data-extractor
"""


def models(*ids: str) -> bytes:
    return answer(json.dumps({"data": [{"id": one} for one in ids]}).encode(), headers="Content-Type: application/json")


class Server:
    """Answers both questions, and counts each."""

    def __init__(self, *ids: str) -> None:
        self.listing = models(*ids)
        self.asked = {"/metrics": 0, "/v1/models": 0}
        self.odd = OddServer(self._answer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = self.odd.heads[-1].split()[1].decode()
        self.asked[path] += 1
        writer.write(self.listing if path == "/v1/models" else vllm(self.asked[path]))


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


async def test_the_list_has_a_rhythm_of_its_own_and_follows_what_is_loaded(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    server = Server("llama")
    async with server.odd, collector(nats.url, interval=0.02):
        await owner.publish([endpoint("a", server.odd.port)], CONFIG)
        await eventually(lambda: frames.value("a", SERVED_MODELS) == ["llama"], "the list")
        server.listing = models("llama", "sql")
        await eventually(lambda: frames.value("a", SERVED_MODELS) == ["llama", "sql"], "the adapter")
        await eventually(lambda: server.asked["/metrics"] >= 40, "many scrapes")
        assert server.asked["/v1/models"] < server.asked["/metrics"] / 2
        assert server.odd.most_in_flight <= 2


async def test_a_list_that_can_not_be_read_is_a_finding_and_the_last_one_stays(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    server = Server("llama")
    async with server.odd, collector(nats.url) as service:
        await owner.publish([endpoint("a", server.odd.port)], CONFIG)
        await eventually(lambda: frames.value("a", SERVED_MODELS) == ["llama"], "the list")
        server.listing = answer(b'{"data": 7}', headers="Content-Type: application/json")

        def outcome() -> str:
            (described,) = service.scraper.describe()
            (asked,) = [one for one in described["sources"] if one["source"] == "models-data-source"]
            if asked["specifications"][0]["outcome"] == Outcome.INVALID:
                return str(asked["models_problem"])
            return ""

        await eventually(lambda: bool(outcome()), "the finding")
        assert "Expected `array`, got `int`" in outcome()
        assert frames.value("a", SERVED_MODELS) == ["llama"]
        assert service.scraper.failures.total() == 0
