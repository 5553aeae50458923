"""The official client library against the simulator."""

from collections.abc import AsyncIterator
from typing import Literal

import openai
import pytest
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionMessageParam

from services.simulator.app import Simulator

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How do points work? " * 20}]


def usage(given: CompletionUsage | None) -> tuple[int, int, int]:
    """Prompt tokens, cached ones, output tokens."""
    assert given is not None
    assert given.prompt_tokens_details is not None
    assert given.total_tokens == given.prompt_tokens + given.completion_tokens
    return given.prompt_tokens, given.prompt_tokens_details.cached_tokens or 0, given.completion_tokens


@pytest.fixture
async def library(server: Simulator) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as one:
        yield one


async def test_chat_streamed_is_the_same_answer(library: openai.AsyncOpenAI) -> None:
    whole = await library.chat.completions.create(model="base", messages=MESSAGES)
    stream = await library.chat.completions.create(
        model="base", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert usage(chunks[-1].usage) == (113, 112, usage(whole.usage)[2])
    assert chunks[-1].choices == []
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[0].choices[0].delta.role == "assistant"


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_embeddings(library: openai.AsyncOpenAI, encoding: Literal["float", "base64"]) -> None:
    answer = await library.embeddings.create(
        model="base", input=["one", "two"], dimensions=16, encoding_format=encoding
    )
    assert [item.index for item in answer.data] == [0, 1]
    assert answer.usage.prompt_tokens == 2
    # Packed as four bytes a number, base64 makes 88 characters of them.
    assert len(answer.data[0].embedding) == (16 if encoding == "float" else 88)


async def test_a_response_and_again_with_the_prefix_cached(library: openai.AsyncOpenAI) -> None:
    text = "How do points work? " * 20
    for cached in (0, 112):
        answer = await library.responses.create(model="base", input=text, max_output_tokens=4)
        assert (answer.status, answer.model) == ("incomplete", "base")
        assert answer.incomplete_details is not None
        assert answer.incomplete_details.reason == "max_output_tokens"
        assert len(answer.output_text) == 16
        assert answer.usage is not None
        assert answer.usage.input_tokens_details.cached_tokens == cached
        assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (113, 4, 117)
    chat = await library.chat.completions.create(model="base", messages=MESSAGES, max_tokens=4)
    assert chat.choices[0].message.content == answer.output_text
    assert usage(chat.usage) == (113, 112, 4)


async def test_errors_are_the_librarys_own(library: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="The model `none` does not exist"):
        await library.completions.create(model="none", prompt="x")
    with pytest.raises(openai.BadRequestError, match="max_tokens: 0 is too small") as caught:
        await library.completions.create(model="base", prompt="x", max_tokens=0)
    assert caught.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError, match="maximum context length is 32768 tokens"):
        await library.completions.create(model="base", prompt="x" * 200_000)
    with pytest.raises(openai.NotFoundError, match="The model `none` does not exist"):
        await library.responses.create(model="none", input="x")
    with pytest.raises(openai.NotFoundError, match="'resp_1' not found"):
        await library.responses.create(model="base", input="x", previous_response_id="resp_1")
