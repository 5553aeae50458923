"""Models that are split between targets: what servers are asked for, and what clients read in their responses."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

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
ASKED = [{"role": "user", "content": 'Say "model":"steady" once.'}]
LONG = "Be brief. " * 50
APIS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "system", "content": LONG}, *ASKED], "max_tokens": 12},
    "/v1/messages": {"system": LONG, "messages": ASKED, "max_tokens": 12},
    "/v1/responses": {"instructions": LONG, "input": ASKED[0]["content"], "max_output_tokens": 12},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(ENVOYS))
async def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    simulators = tuple(
        SimulatorPlan(name=f"model-{number}", flags={"speed": 50, "models": SERVED}) for number in (1, 2)
    )
    directory = tmp_path_factory.mktemp(request.param)
    async with LocalStack(plan(request.param, directory, simulators, RESOURCES), directory) as started:
        yield started


async def test_a_90_to_10_split_is_one_at_the_servers_and_none_at_the_client(
    stack: LocalStack, client: httpx.AsyncClient
) -> None:
    limit = asyncio.Semaphore(16)
    before = await _served(stack)

    async def ask(number: int) -> tuple[str, str]:
        body = {"model": "assistant", "prompt": f"request {number}", "max_tokens": 2}
        async with limit:
            response = await client.post("/v1/completions", json=body, headers={"x-request-id": f"split-{number}"})
        assert response.status_code == 200, response.text
        made = await decision(stack.pickers, f"split-{number}")
        return response.json()["model"], made["target_model"]

    answers = await asyncio.gather(*(ask(number) for number in range(REQUESTS)))
    assert {name for name, _ in answers} == {"assistant"}
    targets = Counter(target for _, target in answers)
    assert set(targets) == {"steady", "canary-that-is-longer"}
    assert 0 < targets["canary-that-is-longer"] < 25, "decided by the requests' ids: the same in every run"
    assert await _served(stack) - before == targets


async def _served(stack: LocalStack) -> Counter[str]:
    """What the servers were asked for."""
    served: Counter[str] = Counter()
    for simulator in stack.simulators:
        served.update((await simulator.state())["models"])
    return served


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", APIS)
async def test_a_response_has_the_clients_model_and_its_tokens_are_counted(
    stack: LocalStack, client: httpx.AsyncClient, path: str, stream: bool
) -> None:
    """In a stream every event that names the model has it, also where it stands one level down."""
    before, used = await _tokens(stack), Counter[str]()
    body = {"model": "assistant", **APIS[path], "stream": stream}
    if stream and "chat" in path:
        body["stream_options"] = {"include_usage": True}
    for _ in range(AGAIN):
        response = await client.post(path, json=body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream" if stream else "application/json")
        assert int(response.headers.get("content-length", len(response.content))) == len(response.content)
        assert set(re.findall(r'"model": ?"([^"]*)"', response.text)) == {"assistant"}
        used += _usage(response.text)
    await nothing_in_flight(stack.pickers)
    assert await _tokens(stack) - before == used
    assert used["request_cached_tokens"]
    assert used["request_output_tokens"] == 12 * AGAIN


def _usage(text: str) -> Counter[str]:
    """The tokens that a response tells of, in whichever API's words, as a picker counts them."""
    documents = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")] or [text]
    usage: dict[str, Any] = {}
    for document in map(json.loads, documents):
        for holder in (document, document.get("response"), document.get("message")):
            usage |= (holder or {}).get("usage") or {}
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    beside = usage.get("cache_read_input_tokens") or 0
    return Counter(
        request_input_tokens=usage.get("prompt_tokens") or usage["input_tokens"] + beside,
        request_cached_tokens=details.get("cached_tokens", 0) + beside,
        request_output_tokens=usage.get("completion_tokens") or usage["output_tokens"],
    )


async def _tokens(stack: LocalStack) -> Counter[str]:
    """Tokens that all pickers have counted of requests for the rewritten model."""
    sums: Counter[str] = Counter()
    for picker in stack.pickers:
        for line in (await picker.metrics()).splitlines():
            found = re.match(r"llm_d_epp_(request_(?:in|out)put_tokens|request_cached_tokens)_sum\{(.*)\} (.*)", line)
            if found and 'model_name="assistant"' in found[2]:
                sums[found[1]] += int(float(found[3]))
    return sums


async def test_a_model_that_no_rule_names_is_the_servers_own(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/completions", json={"model": "steady", "prompt": "plain", "max_tokens": 2})
    assert answer.json()["model"] == "steady"
