"""One pool of real pickers and simulators, and in front of it one Envoy for each gateway's form."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import yaml

from pointsman.local.envoy import Envoy
from pointsman.local.stack import LocalStack, StackPlan, simulators
from tests.protocol.gateways.forms import FORMS, Document, place
from tests.protocol.system.conftest import decision, nothing_in_flight
from tests.waiting import eventually

CHAT = {"model": "base", "messages": [{"role": "user", "content": "Name a signal box."}], "max_tokens": 6}
PATH = "/v1/chat/completions"
ECHO = {"x-simulator-echo": "true"}

CONFIGURATION = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: random-picker
  parameters: {{maxNumOfEndpoints: {endpoints}}}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: random-picker}}
dataLayer: {{staleMetrics: {{policy: lastKnown}}}}
"""
"""Picks by chance: a gateway that doesn't listen can't be right for long."""

RESOURCES = """\
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModelRewrite
metadata: {name: assistant}
spec:
  poolRef: {group: inference.networking.k8s.io, kind: InferencePool, name: default}
  rules:
  - matches: [{model: {type: Exact, value: assistant}}]
    targets: [{modelRewrite: steady-and-longer}]
"""


class Pool:
    """A stack without an Envoy of its own; `gateway` starts one more before it."""

    def __init__(self, stack: LocalStack, life: AsyncExitStack) -> None:
        self.stack = stack
        self._life = life

    @property
    def authorities(self) -> list[str]:
        return [simulator.authority for simulator in self.stack.simulators]

    async def gateway(self, name: str, document: Document) -> Envoy:
        place(document, self.authorities)
        path = self.stack.directory / f"{name}-form.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        return await self._life.enter_async_context(self.stack.further_envoy(name, path))

    async def decided(self, response: httpx.Response) -> dict[str, Any]:
        """The decision on the request that a simulator answered; it tells the request's id, as gateways may change
        it. The request asked for the echo."""
        return await decision(self.stack.pickers, dict(received(response))["x-request-id"])


def received(response: httpx.Response) -> list[tuple[str, str]]:
    """The headers that reached the simulator, of a request that asked for the echo."""
    return [(name.lower(), value) for name, value in json.loads(response.headers["x-simulator-headers"])]


@asynccontextmanager
async def pool(
    directory: Path, *, endpoints: int = 1, pickers: int = 2, configuration: str = ""
) -> AsyncIterator[Pool]:
    """`endpoints` is the number of destinations that the usual configuration picks."""
    plan = StackPlan(
        simulators=simulators(3, speed=20, models="base,steady-and-longer"),
        collectors=1,
        pickers=pickers,
        configuration=configuration or CONFIGURATION.format(endpoints=endpoints),
        resources=RESOURCES,
        envoy=None,
        secure_serving=True,
        # a server that a test kills goes on to be a first choice, so that its gateway has something to do
        flags={"picker": {"drain-delay": "0s"}, "collector": {"failure-threshold": 1000}},
    )
    async with LocalStack(plan, directory) as stack, AsyncExitStack() as life:
        await eventually(stack.eds_file.exists)
        yield Pool(stack, life)


@asynccontextmanager
async def client_of(envoy: Envoy) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=envoy.url, timeout=30, trust_env=False) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def envoys(shared: Pool) -> dict[str, Envoy]:
    """A gateway of each form in front of the module's pool, its fixture `shared`."""
    return {name: await shared.gateway(name, form()) for name, form in FORMS.items()}


@pytest.fixture(params=list(FORMS))
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(loop_scope="module")
async def client(form: str, shared: Pool, envoys: dict[str, Envoy]) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of the gateway. After each test no picker has anything in flight."""
    async with client_of(envoys[form]) as opened:
        yield opened
    await nothing_in_flight(shared.stack.pickers)
