"""Models that are split between targets: what servers are asked for, and what clients read in their responses."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from pointsman.local.stack import LocalStack, SimulatorPlan, StackPlan
from tests.protocol.system.conftest import CONFIGURATION, ENVOYS, decision, nothing_in_flight

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVED = "steady,canary-that-is-longer"
RESOURCES = """\
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModelRewrite
metadata: {name: rollout}
spec:
  poolRef: {group: inference.networking.k8s.io, kind: InferencePool, name: default}
  rules:
  - matches: [{model: {type: Exact, value: assistant}}]
    targets:
    - {modelRewrite: steady, weight: 90}
    - {modelRewrite: canary-that-is-longer, weight: 10}
"""
REQUESTS = 300
EXPECTED = 30
SPREAD = 5.2
"""Standard deviation of a binomial of 300 draws at 10 %."""
PROMPT = 'Say "model":"steady" once.'


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(ENVOYS))
async def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    envoy, endpoints, tls = ENVOYS[request.param]
    plan = StackPlan(
        simulators=tuple(
            SimulatorPlan(name=f"model-{number}", flags={"speed": 50, "models": SERVED}) for number in (1, 2)
        ),
        configuration=CONFIGURATION.format(endpoints=endpoints),
        resources=RESOURCES,
        envoy=envoy,
        secure_serving=tls,
        flags={"picker": {"drain-delay": "500ms"}},
    )
    async with LocalStack(plan, tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: LocalStack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.url, timeout=30, trust_env=False) as opened:
        yield opened
    await nothing_in_flight(stack.pickers)


@pytest.fixture
def openai(client: httpx.AsyncClient) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=str(client.base_url.join("/v1")), api_key="none", max_retries=0)


async def test_a_90_to_10_split_is_one_at_the_servers_and_none_at_the_client(
    stack: LocalStack, client: httpx.AsyncClient
) -> None:
    limit = asyncio.Semaphore(16)

    async def ask(number: int) -> tuple[str, str]:
        async with limit:
            response = await client.post(
                "/v1/completions",
                json={"model": "assistant", "prompt": f"request {number}", "max_tokens": 1},
                headers={"x-request-id": f"split-{number}"},
            )
        assert response.status_code == 200, response.text
        assert int(response.headers.get("content-length", len(response.content))) == len(response.content)
        made = await decision(stack.pickers, f"split-{number}")
        return response.json()["model"], made["target_model"]

    answers = await asyncio.gather(*(ask(number) for number in range(REQUESTS)))
    assert {name for name, _ in answers} == {"assistant"}
    targets = Counter(target for _, target in answers)
    assert set(targets) == {"steady", "canary-that-is-longer"}
    assert abs(targets["canary-that-is-longer"] - EXPECTED) < 4 * SPREAD
    served: Counter[str] = Counter()
    for simulator in stack.simulators:
        served.update((await simulator.state())["models"])
    assert served == targets


async def test_a_retry_of_a_request_stays_with_its_target(stack: LocalStack, client: httpx.AsyncClient) -> None:
    targets = set()
    for _ in range(5):
        await client.post(
            "/v1/completions",
            json={"model": "assistant", "prompt": "again", "max_tokens": 1},
            headers={"x-request-id": "the-same"},
        )
        targets.add((await decision(stack.pickers, "the-same"))["target_model"])
    assert len(targets) == 1


async def test_every_event_of_a_stream_has_the_clients_model(openai: AsyncOpenAI) -> None:
    async with openai:
        stream = await openai.chat.completions.create(
            model="assistant",
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
        events = [event async for event in stream]
    assert {event.model for event in events} == {"assistant"}
    assert "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == 12


async def test_a_whole_response_has_the_clients_model(openai: AsyncOpenAI) -> None:
    async with openai:
        answer = await openai.chat.completions.create(
            model="assistant",
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=12,
        )
        vector = await openai.embeddings.create(model="assistant", input="points")
    assert (answer.model, vector.model) == ("assistant", "assistant")
    assert answer.choices[0].message.content
    assert vector.data[0].embedding


async def test_a_model_that_no_rule_names_is_the_servers_own(openai: AsyncOpenAI) -> None:
    async with openai:
        answer = await openai.completions.create(model="steady", prompt="plain", max_tokens=2)
    assert answer.model == "steady"
