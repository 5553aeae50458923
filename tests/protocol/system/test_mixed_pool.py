"""One pool, several models: every request reaches a server that serves its model, base model or adapter."""

from collections import Counter
from pathlib import Path

import httpx

from pointsman.local.envoy import STANDALONE
from pointsman.local.stack import LocalStack, SimulatorPlan, StackPlan
from tests.protocol.envoy.conftest import unhurried
from tests.protocol.system.conftest import logs, nothing_in_flight
from tests.waiting import eventually

SERVERS = (
    SimulatorPlan(name="llama-1", flags={"speed": 50, "models": "llama", "adapters": "llama-sql"}),
    SimulatorPlan(name="llama-2", flags={"speed": 50, "models": "llama"}),
    SimulatorPlan(name="qwen-1", engine="sglang", flags={"speed": 50, "models": "qwen"}),
)
SERVES = {"llama": {"llama-1", "llama-2"}, "llama-sql": {"llama-1"}, "qwen": {"qwen-1"}}
CONFIGURATION = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: models-data-extractor
- type: served-model-filter
- type: random-picker
  parameters: {maxNumOfEndpoints: 3}
dataLayer: {staleMetrics: {policy: lastKnown}}
"""
REQUESTS = 15


async def lists_known(stack: LocalStack) -> bool:
    """Whether the picker knows every server's models."""
    endpoints = (await stack.pickers[0].state())["endpoints"]
    known = [name for endpoint in endpoints for name in endpoint["attributes"] if name.startswith("/v1/models/")]
    return len(known) == len(SERVERS)


async def test_in_a_mixed_pool_requests_only_reach_servers_of_their_model(tmp_path: Path) -> None:
    plan = StackPlan(
        simulators=SERVERS,
        collectors=1,
        pickers=1,
        configuration=CONFIGURATION,
        envoy=unhurried(STANDALONE, tmp_path),
        flags={"picker": {"drain-delay": "500ms"}},
    )
    async with (
        LocalStack(plan, tmp_path) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=30, trust_env=False) as client,
    ):
        await eventually(lambda: lists_known(stack), lambda: f"all lists\n{logs(stack.directory)}", step=0.05)
        for model, servers in SERVES.items():
            served: Counter[str] = Counter()
            for number in range(REQUESTS):
                body = {"model": model, "prompt": f"request {number}", "max_tokens": 1}
                response = await client.post("/v1/completions", json=body)
                assert response.status_code == 200, response.text
                served[response.headers["x-simulator-endpoint"]] += 1
            assert set(served) == servers
        response = await client.post("/v1/completions", json={"model": "nobodys", "prompt": "x"})
        assert response.status_code == 404, response.text
        await nothing_in_flight(stack.pickers)
