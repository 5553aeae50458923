"""What the official client libraries make of each refusal: an error of their own type for its status.

The refusals are the pickers' own, except where the server's is named; the pool names its models, one objective may be
shed, and bodies and headers have narrow limits.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import httpx
import pytest
import pytest_asyncio
from msgspec import Struct

from pointsman.local.stack import LocalStack, SimulatorPlan, StackPlan
from tests.protocol.envoy.conftest import unhurried
from tests.protocol.system.conftest import CONFIGURATION, ENVOYS, logs, nothing_in_flight
from tests.waiting import TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

RESOURCES = """\
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata: {name: base}
spec: {modelName: base, poolRef: {name: default}}
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata: {name: broken}
spec:
  modelName: broken
  poolRef: {name: default}
  targetModels: [{name: nowhere}]
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec: {priority: -1, poolRef: {name: default}}
"""
BATCH = {"x_llm_d_inference_objective": "batch"}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(ENVOYS))
async def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    envoy, endpoints, tls = ENVOYS[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    plan = StackPlan(
        simulators=(SimulatorPlan(name="model-1", flags={"speed": 50, "models": "base"}),),
        collectors=1,
        configuration=CONFIGURATION.format(endpoints=endpoints),
        resources=RESOURCES,
        envoy=unhurried(envoy, directory),
        secure_serving=tls,
        flags={"picker": {"drain-delay": "500ms", "max-request-body": "100Ki", "max-request-headers": "4Ki"}},
    )
    async with LocalStack(plan, directory) as started:
        yield started


Ask: TypeAlias = Callable[..., Awaitable[str]]
"""Sends one request with this model, text and these headers, whole or streamed, and gives the text of the answer."""


class Library(Struct, frozen=True):
    """An API's official library."""

    errors: Any
    """The module that has its error types, whose names are the same in both."""
    ask: Ask
    kinds: dict[int, str]
    """`error.type` by status."""


@contextlib.asynccontextmanager
async def _openai(url: str) -> AsyncIterator[Library]:
    import openai

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        create: Any = client.chat.completions.create

        async def ask(model: str = "base", text: str = "Hello", stream: bool = False, **headers: str) -> str:
            asked = [{"role": "user", "content": text}]
            answer = await create(model=model, messages=asked, extra_headers=_dashed(headers), stream=stream)
            if stream:
                return "".join([event.choices[0].delta.content or "" async for event in answer])
            return str(answer.choices[0].message.content)

        kinds = {404: "model_not_found", 429: "rate_limit_exceeded", 503: "service_unavailable"}
        yield Library(openai, ask, dict.fromkeys((400, 413, 431), "invalid_request_error") | kinds)


@contextlib.asynccontextmanager
async def _anthropic(url: str) -> AsyncIterator[Library]:
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        messages: Any = client.messages

        async def ask(model: str = "base", text: str = "Hello", stream: bool = False, **headers: str) -> str:
            asked = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
            if stream:
                async with messages.stream(**asked, extra_headers=_dashed(headers)) as events:
                    return "".join([piece async for piece in events.text_stream])
            answer = await messages.create(**asked, extra_headers=_dashed(headers))
            return str(answer.content[0].text)

        kinds = {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error"}
        yield Library(anthropic, ask, dict.fromkeys((400, 431), "invalid_request_error") | kinds)


def _dashed(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


LIBRARIES: dict[str, Callable[[str], contextlib.AbstractAsyncContextManager[Library]]] = {
    "openai": _openai,
    "anthropic": _anthropic,
}


@pytest_asyncio.fixture(loop_scope="module", params=list(LIBRARIES))
async def library(request: pytest.FixtureRequest, stack: LocalStack) -> AsyncIterator[Library]:
    async with LIBRARIES[request.param](stack.url) as opened:
        yield opened
    await nothing_in_flight(stack.pickers)


async def _refused(library: Library, kind: str, status: int, ask: Awaitable[str]) -> Any:
    """The error that the library raises; its class, status and type are checked."""
    with pytest.raises(getattr(library.errors, kind)) as caught:
        await ask
    error = caught.value
    assert isinstance(error, library.errors.APIStatusError)
    assert (error.status_code, error.type) == (status, library.kinds[status])
    assert error.response.headers["content-type"].startswith("application/json")
    return error


STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@STREAMS
@pytest.mark.parametrize(
    ("kind", "status", "asked", "says"),
    [
        ("NotFoundError", 404, {"model": "unknown-one"}, "unknown-one"),
        ("ContentTooLargeError", 413, {"text": "x" * 120_000}, "larger than the limit of 102400 bytes"),
        ("APIStatusError", 431, {"x_large": "x" * 6_000}, "headers with 4096 bytes"),
    ],
    ids=["a model that the pool doesn't name", "a body beyond the limit", "headers beyond the limit"],
)
async def test_what_the_picker_refuses(
    library: Library, stream: bool, kind: str, status: int, asked: dict[str, str], says: str
) -> None:
    kind = kind if hasattr(library.errors, kind) else "APIStatusError"
    error = await _refused(library, kind, status, library.ask(**asked, stream=stream))
    assert says in str(error)
    assert "x-simulator-endpoint" not in error.response.headers


async def test_a_model_that_the_server_doesnt_have(library: Library) -> None:
    with pytest.raises(library.errors.NotFoundError, match="nowhere") as caught:
        await library.ask("broken")
    assert caught.value.response.headers["x-simulator-endpoint"] == "model-1"


@STREAMS
async def test_a_full_pool_sheds_what_may_be_shed(stack: LocalStack, library: Library, stream: bool) -> None:
    async with httpx.AsyncClient(base_url=stack.simulators[0].url, timeout=TIMEOUT, trust_env=False) as control:
        await control.put("/control/metrics", json={"waiting": 50, "kv_usage": 0.99})
        try:
            await _queue(stack, 50)
            error = await _refused(library, "RateLimitError", 429, library.ask(**BATCH, stream=stream))
            assert error.response.headers["retry-after"] == "1"
            assert error.response.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
            assert await library.ask(stream=stream), "what has no priority below 0 is served"
        finally:
            await control.delete("/control/metrics")
        await _queue(stack, 0)


@STREAMS
async def test_a_pool_without_an_endpoint(stack: LocalStack, library: Library, stream: bool) -> None:
    stack.write_endpoints([])
    try:
        await _endpoints(stack, 0)
        error = await _refused(library, "InternalServerError", 503, library.ask(stream=stream))
        assert error.response.headers["retry-after"] == "1"
        assert error.response.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
    finally:
        stack.write_endpoints()
        await _endpoints(stack, 1)


async def _endpoints(stack: LocalStack, count: int) -> None:
    async def known() -> bool:
        return all([len((await picker.state())["endpoints"]) == count for picker in stack.pickers])

    await eventually(known, lambda: f"every picker has {count} endpoints\n{logs(stack.directory)}", step=0.05)


async def _queue(stack: LocalStack, value: float) -> None:
    async def seen() -> bool:
        states = [await picker.state() for picker in stack.pickers]
        attributes = [state["endpoints"][0]["attributes"] for state in states]
        return all(
            attribute.get("WaitingQueueSize/core-metrics-extractor", {}).get("value") == value
            for attribute in attributes
        )

    await eventually(seen, lambda: f"every picker sees a queue of {value:g}\n{logs(stack.directory)}", step=0.05)
