"""Anthropic's official client library against the simulator."""

from collections.abc import AsyncIterator

import anthropic
import pytest
from anthropic.types import MessageParam, Usage

from services.simulator.app import Simulator
from services.simulator.faults import Fail

MESSAGES: list[MessageParam] = [{"role": "user", "content": "How do points work? " * 20}]


def usage(given: Usage) -> tuple[int, int, int]:
    """Tokens of the prompt that were computed and that were cached, tokens of the answer."""
    return given.input_tokens, given.cache_read_input_tokens or 0, given.output_tokens


@pytest.fixture
async def library(server: Simulator) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as one:
        yield one


async def test_a_message_and_again_with_the_prefix_cached(library: anthropic.AsyncAnthropic) -> None:
    for computed, cached in ((113, 0), (1, 112)):
        answer = await library.messages.create(model="base", messages=MESSAGES, max_tokens=4)
        assert usage(answer.usage) == (computed, cached, 4)
        assert (answer.role, answer.stop_reason, answer.model) == ("assistant", "max_tokens", "base")
        [block] = answer.content
        assert block.type == "text"
        assert len(block.text) == 16


async def test_a_streamed_message_is_the_same_answer(library: anthropic.AsyncAnthropic) -> None:
    whole = await library.messages.create(model="base", messages=MESSAGES, max_tokens=100)
    async with library.messages.stream(model="base", messages=MESSAGES, max_tokens=100) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    assert whole.content[0].type == "text"
    assert whole.content[0].text == text
    assert (final.stop_reason, whole.stop_reason) == ("end_turn", "end_turn")
    assert usage(final.usage) == (1, 112, usage(whole.usage)[2])


async def test_tokens_are_counted_without_the_engine(library: anthropic.AsyncAnthropic, server: Simulator) -> None:
    counted = await library.messages.count_tokens(model="base", messages=MESSAGES)
    assert counted.input_tokens == 113
    assert server.server.state().prompt_tokens == 0


async def test_errors_are_the_librarys_own(library: anthropic.AsyncAnthropic, server: Simulator) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        await library.messages.create(model="none", messages=MESSAGES, max_tokens=1)
    assert unknown.value.type == "not_found_error"
    assert "The model `none` does not exist" in str(unknown.value)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens: 0 is too small") as bad:
        await library.messages.create(model="base", messages=MESSAGES, max_tokens=0)
    assert bad.value.type == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        await library.messages.count_tokens(model="none", messages=MESSAGES)
    server.server.set_fault("inference", Fail(status=503, retry_after=1))
    with pytest.raises(anthropic.InternalServerError) as down:
        await library.messages.create(model="base", messages=MESSAGES, max_tokens=1)
    assert (down.value.status_code, down.value.type) == (503, "overloaded_error")
