"""Requests that wait for room in the pool, through the real Envoy, with each of the two configurations."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pointsman.local.stack import LocalStack, StackPlan, simulators
from tests.protocol.envoy.conftest import unhurried
from tests.protocol.system.conftest import ENVOYS, decision, nothing_in_flight
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOM = 4
"""Requests that the pool takes at once."""
MESSAGE_TIMEOUT = 3.0
"""Seconds for which Envoy waits for a picker that doesn't ask for more."""
CONFIGURATION = f"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {{type: concurrency-detector, parameters: {{maxConcurrency: {ROOM}}}}}
- type: active-request-scorer
- type: round-robin-fairness-policy
schedulingProfiles:
- {{name: default, plugins: [{{pluginRef: active-request-scorer}}]}}
flowControl:
  saturationDetector: {{pluginRef: concurrency-detector}}
  defaultPriorityBand: {{fairnessPolicyRef: round-robin-fairness-policy}}
  enableEviction: true
dataLayer: {{staleMetrics: {{policy: lastKnown}}}}
"""
OBJECTIVES = "---\n".join(
    f"""\
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceObjective
metadata: {{name: {name}}}
spec: {{priority: {priority}, poolRef: {{name: default}}}}
"""
    for name, priority in (("urgent", 10), ("batch", -1))
)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(ENVOYS))
async def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    directory = tmp_path_factory.mktemp(f"flow-{request.param}")
    configuration, _, tls = ENVOYS[request.param]
    plan = StackPlan(
        simulators=simulators(1, speed=4),
        collectors=1,
        configuration=CONFIGURATION,
        resources=OBJECTIVES,
        envoy=unhurried(configuration, directory, f"{MESSAGE_TIMEOUT}s"),
        secure_serving=tls,
        flags={"picker": {"drain-delay": "500ms", "drain-timeout": "4s"}},
    )
    async with LocalStack(plan, directory) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: LocalStack) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=stack.url, timeout=100, trust_env=False, limits=limits) as opened:
        yield opened
    for picker in stack.pickers:
        if not picker.running:  # as a failed test leaves it
            await picker.start()
    await nothing_in_flight(stack.pickers)
    await queued(stack, 0)


async def waiting(stack: LocalStack) -> list[int]:
    """Requests that wait, by running picker."""
    states = [await picker.state() for picker in stack.pickers if picker.running]
    return [sum(band["requests"] for band in state["flow_control"]["bands"]) for state in states]


async def queued(stack: LocalStack, count: int) -> None:
    """Wait until so many requests wait at all pickers."""
    found: list[int] = []

    async def so() -> bool:
        nonlocal found
        found = await waiting(stack)
        return sum(found) == count

    await eventually(so, lambda: f"{count} requests wait: {found}", step=0.05)


async def ask(client: httpx.AsyncClient, name: str = "", tokens: int = 2, objective: str = "") -> httpx.Response:
    headers = {"x-llm-d-inference-objective": objective} if objective else {}
    if name:
        headers["x-request-id"] = name
    body = {"model": "simulated", "prompt": "All stations", "max_tokens": tokens, "ignore_eos": True}
    return await client.post("/v1/completions", json=body, headers=headers)


@asynccontextmanager
async def full(stack: LocalStack, client: httpx.AsyncClient, objective: str = "") -> AsyncIterator[list[Any]]:
    """The pool is full of requests that don't end meanwhile; their tasks."""
    running = [asyncio.ensure_future(ask(client, tokens=60_000, objective=objective)) for _ in range(ROOM)]

    async def so() -> bool:
        states = [await picker.state() for picker in stack.pickers]
        return all(state["endpoints"][0]["inflight"]["requests"] >= ROOM for state in states)

    await eventually(so, "the pool is full", step=0.05)
    try:
        yield running
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_all_that_wait_are_served(stack: LocalStack, client: httpx.AsyncClient) -> None:
    """Also those that wait for longer than Envoy waits for a message."""
    async with full(stack, client):
        requests = [asyncio.ensure_future(ask(client, f"request-{number}")) for number in range(20)]
        await queued(stack, 20)
        assert all(await waiting(stack)), "both pickers have requests"
        await asyncio.sleep(MESSAGE_TIMEOUT + 1)
        assert not any(request.done() for request in requests)
    assert {response.status_code for response in await asyncio.gather(*requests)} == {200}
    queue = (await decision(stack.pickers, "request-7"))["queue"]
    assert queue["seconds"] >= MESSAGE_TIMEOUT
    assert queue["released_by"]


async def test_a_client_that_disconnects_leaves_the_queue(stack: LocalStack, client: httpx.AsyncClient) -> None:
    async with full(stack, client):
        requests = [asyncio.ensure_future(ask(client)) for _ in range(6)]
        await queued(stack, 6)
        for request in requests[:4]:
            request.cancel()
        await queued(stack, 2)
    assert [response.status_code for response in await asyncio.gather(*requests[4:])] == [200, 200]


async def test_a_pool_that_scales_from_zero_serves_its_queue(stack: LocalStack, client: httpx.AsyncClient) -> None:
    stack.write_endpoints([])

    async def empty() -> bool:
        return not any([(await picker.state())["endpoints"] for picker in stack.pickers])

    try:
        await eventually(empty, "no endpoints")
        requests = [asyncio.ensure_future(ask(client)) for _ in range(6)]
        await queued(stack, 6)
    finally:
        stack.write_endpoints()
    assert {response.status_code for response in await asyncio.gather(*requests)} == {200}


async def test_eviction_makes_room_for_a_higher_band(stack: LocalStack, client: httpx.AsyncClient) -> None:
    async with full(stack, client, "batch") as running:
        # a picker ends its own requests only, and Envoy may have sent all of them to one
        urgent = await asyncio.gather(*(ask(client, objective="urgent") for _ in range(8)))
        assert [response.status_code for response in urgent] == [200] * len(urgent)
        # the evicted response takes another way to its client
        for ended in await eventually(lambda: [task for task in running if task.done()], "an evicted request"):
            response = ended.result()
            assert (response.status_code, response.headers["x-llm-d-request-dropped-reason"]) == (429, "evicted")


async def test_queued_requests_survive_the_stop_of_a_picker(stack: LocalStack, client: httpx.AsyncClient) -> None:
    """Where Envoy has an answer to the headers already, it can't ask another picker, and the client is refused."""
    count = 500
    async with full(stack, client):
        requests = [asyncio.ensure_future(ask(client)) for _ in range(count)]
        await queued(stack, count)
        leaving = stack.pickers[0]
        at_stake = (await waiting(stack))[0]
        assert at_stake
        await leaving.stop()
        await leaving.start()
    refused = [response for response in await asyncio.gather(*requests) if response.status_code != 200]
    reasons = {(response.status_code, response.headers["x-llm-d-request-dropped-reason"]) for response in refused}
    if stack.plan.secure_serving:  # the gateway
        assert not refused
    else:
        assert reasons <= {(503, "rejected-shutting-down")}
        assert len(refused) <= at_stake
