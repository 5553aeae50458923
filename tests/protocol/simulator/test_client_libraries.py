"""The official client libraries against the simulator."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from services.simulator.app import Simulator
from services.simulator.faults import Fail

ASKED: list[Any] = [{"role": "user", "content": "How do points work? " * 20}]

if TYPE_CHECKING:
    import anthropic
    import openai


@pytest.fixture
async def by_openai(server: Simulator) -> "AsyncIterator[openai.AsyncOpenAI]":
    import openai

    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as each:
        yield each


@pytest.fixture
async def by_anthropic(server: Simulator) -> "AsyncIterator[anthropic.AsyncAnthropic]":
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as each:
        yield each


async def test_a_chat_and_its_stream_are_one_answer_whose_prompt_is_cached(by_openai: "openai.AsyncOpenAI") -> None:
    create: Any = by_openai.chat.completions.create
    whole = await create(model="base", messages=ASKED)
    stream = await create(model="base", messages=ASKED, stream=True, stream_options={"include_usage": True})
    *chunks, last = [chunk async for chunk in stream]
    for usage, cached in ((whole.usage, 0), (last.usage, 112)):
        assert (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens) == (113, cached)
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert last.choices == []
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert (chunks[0].choices[0].delta.role, chunks[-1].choices[0].finish_reason) == ("assistant", "stop")


async def test_a_response_and_its_stream_are_one_answer_whose_prompt_is_cached(by_openai: "openai.AsyncOpenAI") -> None:
    asked: dict[str, Any] = {"model": "base", "input": ASKED[0]["content"], "max_output_tokens": 4}
    whole: Any = await by_openai.responses.create(**asked)
    async with by_openai.responses.stream(**asked) as stream:
        text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
        final: Any = await stream.get_final_response()
    for answer, cached in ((whole, 0), (final, 112)):
        assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert answer.output_text == text
        assert answer.usage.input_tokens_details.cached_tokens == cached
        assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (113, 4, 117)


async def test_a_message_and_its_stream_are_one_answer_whose_prompt_is_cached(
    by_anthropic: "anthropic.AsyncAnthropic",
) -> None:
    asked: dict[str, Any] = {"model": "base", "messages": ASKED, "max_tokens": 4}
    whole: Any = await by_anthropic.messages.create(**asked)
    async with by_anthropic.messages.stream(**asked) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final: Any = await stream.get_final_message()
    for answer, computed, cached in ((whole, 113, 0), (final, 1, 112)):
        assert [(block.type, block.text) for block in answer.content] == [("text", text)]
        assert (answer.role, answer.stop_reason, answer.model) == ("assistant", "max_tokens", "base")
        usage = (answer.usage.input_tokens, answer.usage.cache_read_input_tokens or 0, answer.usage.output_tokens)
        assert usage == (computed, cached, 4)
    counted = await by_anthropic.messages.count_tokens(model="base", messages=ASKED)
    assert counted.input_tokens == 113


async def test_errors_are_the_libraries_own(
    by_openai: "openai.AsyncOpenAI", by_anthropic: "anthropic.AsyncAnthropic", server: Simulator
) -> None:
    import anthropic
    import openai

    with pytest.raises(openai.NotFoundError, match="The model `none` does not exist"):
        await by_openai.completions.create(model="none", prompt="x")
    with pytest.raises(openai.BadRequestError, match="max_tokens: 0 is too small") as caught:
        await by_openai.completions.create(model="base", prompt="x", max_tokens=0)
    assert caught.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError, match="maximum context length is 32768 tokens"):
        await by_openai.completions.create(model="base", prompt="x" * 200_000)
    with pytest.raises(openai.NotFoundError, match="'resp_1' not found"):
        await by_openai.responses.create(model="base", input="x", previous_response_id="resp_1")
    with pytest.raises(anthropic.NotFoundError, match="The model `none` does not exist") as unknown:
        await by_anthropic.messages.create(model="none", messages=ASKED, max_tokens=1)
    assert unknown.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="max_tokens: 0 is too small"):
        await by_anthropic.messages.create(model="base", messages=ASKED, max_tokens=0)
    server.server.set_fault("inference", Fail(status=503, retry_after=1))
    with pytest.raises(anthropic.InternalServerError) as down:
        await by_anthropic.messages.create(model="base", messages=ASKED, max_tokens=1)
    assert (down.value.status_code, down.value.type) == (503, "overloaded_error")
