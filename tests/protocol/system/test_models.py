"""Models that are split between targets: what servers are asked for, and what clients read in their responses."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from anthropic.types import Usage
from openai import AsyncOpenAI
from openai.types.responses import ResponseUsage

from pointsman.local.stack import LocalStack, SimulatorPlan
from tests.protocol.system.conftest import ENVOYS, decision, nothing_in_flight, plan

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
REQUESTS = 100
AGAIN = 3
"""With two servers, one of them gets the same prompt twice, and has it cached then."""
PROMPT = 'Say "model":"steady" once.'


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(ENVOYS))
async def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    simulators = tuple(
        SimulatorPlan(name=f"model-{number}", flags={"speed": 50, "models": SERVED}) for number in (1, 2)
    )
    directory = tmp_path_factory.mktemp(request.param)
    async with LocalStack(plan(request.param, directory, simulators, RESOURCES), directory) as started:
        yield started


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_90_to_10_split_is_one_at_the_servers_and_none_at_the_client(
    stack: LocalStack, client: httpx.AsyncClient, stream: bool
) -> None:
    limit = asyncio.Semaphore(16)
    before = await _served(stack)

    async def ask(number: int) -> tuple[set[str], str]:
        id = f"split-{number}-{'streamed' if stream else 'whole'}"
        async with limit:
            response = await client.post(
                "/v1/completions",
                json={"model": "assistant", "prompt": f"request {number}", "max_tokens": 2, "stream": stream},
                headers={"x-request-id": id},
            )
        assert response.status_code == 200, response.text
        assert int(response.headers.get("content-length", len(response.content))) == len(response.content)
        assert response.headers["content-type"].startswith("text/event-stream" if stream else "application/json")
        made = await decision(stack.pickers, id)
        return _models(response.text) if stream else {response.json()["model"]}, made["target_model"]

    answers = await asyncio.gather(*(ask(number) for number in range(REQUESTS)))
    assert {name for names, _ in answers for name in names} == {"assistant"}
    targets = Counter(target for _, target in answers)
    assert set(targets) == {"steady", "canary-that-is-longer"}
    assert 0 < targets["canary-that-is-longer"] < 25, "decided by the requests' ids: the same in every run"
    assert await _served(stack) - before == targets


def _models(events: str) -> set[str]:
    """The models that a stream's events name; each names one."""
    told = [line.removeprefix("data: ") for line in events.splitlines() if line.startswith("data: {")]
    assert told
    return {json.loads(one)["model"] for one in told}


async def _served(stack: LocalStack) -> Counter[str]:
    """What the servers were asked for."""
    served: Counter[str] = Counter()
    for simulator in stack.simulators:
        served.update((await simulator.state())["models"])
    return served


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


@pytest_asyncio.fixture(loop_scope="module")
async def anthropic(client: httpx.AsyncClient) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=str(client.base_url), api_key="none", max_retries=0) as opened:
        yield opened


async def test_a_message_has_the_clients_model_and_its_tokens_are_counted(
    stack: LocalStack, anthropic: AsyncAnthropic
) -> None:
    before = await _tokens(stack)
    used: list[Usage] = []
    for _ in range(AGAIN):
        answer = await anthropic.messages.create(
            model="assistant", system="Be brief. " * 50, messages=[{"role": "user", "content": PROMPT}], max_tokens=12
        )
        assert answer.model == "assistant"
        assert answer.content[0].type == "text"
        assert answer.content[0].text
        used.append(answer.usage)
    await _counted(stack, before, _of_messages(used))


async def test_a_streamed_message_has_the_clients_model_and_its_tokens_are_counted(
    stack: LocalStack, anthropic: AsyncAnthropic
) -> None:
    before = await _tokens(stack)
    used: list[Usage] = []
    for _ in range(AGAIN):
        async with anthropic.messages.stream(
            model="assistant", system="Be kind. " * 50, messages=[{"role": "user", "content": PROMPT}], max_tokens=12
        ) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            answer = await stream.get_final_message()
        assert answer.model == "assistant"
        assert answer.content[0].type == "text"
        assert answer.content[0].text == text
        assert answer.usage.output_tokens == 12
        used.append(answer.usage)
    await _counted(stack, before, _of_messages(used))


async def test_tokens_of_a_rewritten_model_can_be_counted(anthropic: AsyncAnthropic) -> None:
    counted = await anthropic.messages.count_tokens(model="assistant", messages=[{"role": "user", "content": PROMPT}])
    assert counted.input_tokens > 5


async def test_a_response_has_the_clients_model_and_its_tokens_are_counted(
    stack: LocalStack, openai: AsyncOpenAI
) -> None:
    before = await _tokens(stack)
    used: list[ResponseUsage] = []
    async with openai:
        for _ in range(AGAIN):
            answer = await openai.responses.create(
                model="assistant", instructions="Be quick. " * 50, input=PROMPT, max_output_tokens=12
            )
            assert answer.model == "assistant"
            assert answer.output_text
            assert answer.usage is not None
            used.append(answer.usage)
    await _counted(stack, before, _of_responses(used))


async def test_a_streamed_response_has_the_clients_model_in_its_events_and_its_tokens_are_counted(
    stack: LocalStack, openai: AsyncOpenAI
) -> None:
    """The name stands one level down there, in the response that some of the events carry."""
    before = await _tokens(stack)
    used: list[ResponseUsage] = []
    async with openai:
        for _ in range(AGAIN):
            stream = await openai.responses.create(
                model="assistant", instructions="Be slow. " * 50, input=PROMPT, max_output_tokens=12, stream=True
            )
            named: dict[str, str] = {}
            text = ""
            async for event in stream:
                if event.type == "response.output_text.delta":
                    text += event.delta
                elif event.type in ("response.created", "response.in_progress", "response.completed"):
                    named[event.type] = event.response.model
                    last = event.response
            assert named == dict.fromkeys(named, "assistant")
            assert len(named) == 3
            assert last.output_text == text
            assert last.usage is not None
            assert last.usage.output_tokens == 12
            used.append(last.usage)
    await _counted(stack, before, _of_responses(used))


def _of_messages(used: list[Usage]) -> Counter[str]:
    """The tokens that messages took, as a picker counts them."""
    cached = sum(one.cache_read_input_tokens or 0 for one in used)
    return Counter(
        request_input_tokens=cached + sum(one.input_tokens for one in used),
        request_cached_tokens=cached,
        request_output_tokens=sum(one.output_tokens for one in used),
    )


def _of_responses(used: list[ResponseUsage]) -> Counter[str]:
    """The tokens that responses took."""
    return Counter(
        request_input_tokens=sum(one.input_tokens for one in used),
        request_cached_tokens=sum(one.input_tokens_details.cached_tokens for one in used),
        request_output_tokens=sum(one.output_tokens for one in used),
    )


async def _counted(stack: LocalStack, before: Counter[str], used: Counter[str]) -> None:
    """The pickers' metrics have grown by these tokens: all of the prompts, what of them was cached, the answers."""
    await nothing_in_flight(stack.pickers)
    assert await _tokens(stack) - before == used
    assert used["request_cached_tokens"]


async def _tokens(stack: LocalStack) -> Counter[str]:
    """Tokens that all pickers have counted of requests for the rewritten model."""
    sums: Counter[str] = Counter()
    for picker in stack.pickers:
        for line in (await picker.metrics()).splitlines():
            found = re.match(r"llm_d_epp_(request_(?:in|out)put_tokens|request_cached_tokens)_sum\{(.*)\} (.*)", line)
            if found and 'model_name="assistant"' in found[2]:
                sums[found[1]] += int(float(found[3]))
    return sums


async def test_a_model_that_no_rule_names_is_the_servers_own(openai: AsyncOpenAI) -> None:
    async with openai:
        answer = await openai.completions.create(model="steady", prompt="plain", max_tokens=2)
    assert answer.model == "steady"
