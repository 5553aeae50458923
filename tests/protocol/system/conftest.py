"""The whole system through the real Envoy, once with each of the two configurations, for all tests of a module."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pointsman.local.envoy import GATEWAY, STANDALONE
from pointsman.local.services import Picker
from pointsman.local.stack import LocalStack, SimulatorPlan, StackPlan
from tests.protocol.envoy.conftest import unhurried
from tests.waiting import eventually

CONFIGURATION = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: max-score-picker
  parameters: {{maxNumOfEndpoints: {endpoints}}}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: queue-scorer, weight: 2}}
  - {{pluginRef: kv-cache-utilization-scorer, weight: 2}}
  - {{pluginRef: prefix-cache-scorer, weight: 3}}
  - {{pluginRef: max-score-picker}}
dataLayer: {{staleMetrics: {{policy: lastKnown}}}}
"""
"""The weighted sum. Ours asks for fallbacks; a gateway's ORIGINAL_DST cluster takes one destination."""

ENVOYS = {"ours": (STANDALONE, 3, False), "gateway": (GATEWAY, 1, True)}
SIMULATORS = (
    SimulatorPlan(name="model-1", flags={"speed": 20, "models": "base,other"}),
    SimulatorPlan(name="model-2", flags={"speed": 20, "models": "base,other"}),
    SimulatorPlan(name="model-3", engine="sglang", flags={"speed": 20, "models": "base,other"}),
)


def plan(
    envoy: str, directory: Path, simulators: tuple[SimulatorPlan, ...] = SIMULATORS, resources: str = ""
) -> StackPlan:
    """A system behind one of the Envoys, which has time for pickers that stand still."""
    configuration, endpoints, tls = ENVOYS[envoy]
    return StackPlan(
        simulators=simulators,
        configuration=CONFIGURATION.format(endpoints=endpoints),
        resources=resources,
        envoy=unhurried(configuration, directory),
        secure_serving=tls,
        flags={"picker": {"drain-delay": "500ms"}},
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(ENVOYS))
async def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    directory = tmp_path_factory.mktemp(request.param)
    async with LocalStack(plan(request.param, directory), directory) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: LocalStack) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of Envoy. After each test no picker has anything in flight."""
    async with httpx.AsyncClient(base_url=stack.url, timeout=30, trust_env=False) as opened:
        yield opened
    await nothing_in_flight(stack.pickers)


async def nothing_in_flight(pickers: list[Picker]) -> None:
    """Wait until no picker counts a request in flight, of its own or of its peers; fails when that lasts."""
    left: dict[str, Any] = {}

    async def so() -> bool:
        nonlocal left
        states = {picker.name: await picker.state() for picker in pickers}
        left = {name: busy for name, state in states.items() if (busy := in_flight(state))}
        return not left

    await eventually(so, lambda: f"nothing in flight: {left}", step=0.05)


def in_flight(state: dict[str, Any]) -> dict[str, Any]:
    """What a picker, or each of its workers, by its state, counts in flight, of its own or of its peers; empty for
    nothing at all."""
    if "workers" in state:
        counted = {id: row["missing"] or in_flight(row["picker"]) for id, row in state["workers"].items()}
        return {id: busy for id, busy in counted.items() if busy}
    endpoints = {
        endpoint["id"]: endpoint["inflight"] for endpoint in state["endpoints"] if any(endpoint["inflight"].values())
    }
    found = {"endpoints": endpoints, "own": state["own_inflight"], "open": state["open_exchanges"]}
    return {name: item for name, item in found.items() if item}


async def decision(pickers: list[Picker], request_id: str) -> dict[str, Any]:
    """The decision on a request, from whichever picker made it."""
    for picker in pickers:
        try:
            answer = await picker.get(f"/debug/decisions/{request_id}")
        except httpx.HTTPStatusError:
            continue
        found: dict[str, Any] = answer.json()["decisions"][0]
        return found
    pytest.fail(f"no picker decided {request_id!r}")


def logs(directory: Path) -> str:
    """The processes' logs, for a failure's message."""
    return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in sorted(directory.glob("*.log")))
