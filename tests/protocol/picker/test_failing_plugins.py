"""A third-party scorer that fails, in a running picker: requests are routed, and the picker says who failed."""

import httpx
from structlog.testing import capture_logs

from services.picker.request_stream import RequestStream
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Scorer
from services.picker.state.layout import Floats, Rows
from shared.plugin import Registry
from tests.in_process import picker, serving
from tests.nats import NatsServer
from tests.protocol.collector.harness import Owner, endpoint
from tests.unit.services.picker.extproc.proxy import LEAN, body, headers
from tests.waiting import TIMEOUT, eventually

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: bad-scorer}, {type: queue-scorer}]
"""
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'


class BadScorer(Scorer):
    TYPE = "bad-scorer"

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        raise KeyError("gpu")


async def test_a_scorer_that_raises_costs_no_request_and_is_told_everywhere(nats: NatsServer, owner: Owner) -> None:
    service = picker(nats.url, plugins=Registry([*Registry.installed(), BadScorer]))
    async with serving(service):
        await owner.publish([endpoint("a", 8000)], CONFIG)
        await eventually(lambda: service.config.accepted == 1 and len(service.view.layout) == 1, "the configuration")
        failures = "pointsman_plugin_failures_total"
        assert service.registry.get_sample_value(failures, {"plugin": "bad-scorer"}) == 0
        with capture_logs() as logs:
            for number in range(3):
                stream = RequestStream(service.handler)
                path = [(":method", "POST"), (":path", "/v1/chat/completions"), ("x-request-id", f"r{number}")]
                for message in (headers(path, modes=LEAN), body(BODY, end=True)):
                    stream.receive(message.SerializeToString())
                stream.end()
        logged = [(entry["plugin"], entry["request_id"]) for entry in logs if entry["event"] == "plugin.failed"]
        assert logged == [("bad-scorer", "r0")], "a line a minute"
        assert service.registry.get_sample_value(failures, {"plugin": "bad-scorer"}) == 3
        assert service.registry.get_sample_value("pointsman_picker_decisions_total", {"status": "200"}) == 3
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{service.admin_port}", trust_env=False, timeout=TIMEOUT
        ) as client:
            ready = await client.get("/readyz")
            kept = (await client.get("/debug/decisions")).json()["decisions"]
        assert ready.status_code == 200
        assert "'bad-scorer' has failed 3 times" in ready.json()["notes"]["plugins"]
        assert [decision["plugin_failures"] for decision in kept] == [
            [{"plugin": "bad-scorer", "role": "scorer", "error": "KeyError: 'gpu'"}]
        ] * 3
