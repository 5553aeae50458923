"""Anthropic's official client through Envoy and picker, to the endpoint that the picker named."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic, BadRequestError, NotFoundError
from anthropic.types import MessageParam, ToolParam

from pointsman.local.stack import LocalStack
from tests.protocol.system.conftest import decision

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO: list[MessageParam] = [{"role": "user", "content": "Hello"}]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="


@pytest_asyncio.fixture(loop_scope="module")
async def anthropic(client: httpx.AsyncClient) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=str(client.base_url), api_key="none", max_retries=0) as opened:
        yield opened


async def test_a_message_reaches_the_endpoint_that_the_picker_named(
    stack: LocalStack, anthropic: AsyncAnthropic
) -> None:
    raw = await anthropic.messages.with_raw_response.create(model="base", messages=HELLO, max_tokens=6)
    made = await decision(stack.pickers, raw.headers["x-request-id"])
    assert raw.headers["x-simulator-endpoint"] == made["endpoint"].removeprefix("default/")
    assert made["model"] == "base"
    answer = await raw.parse()
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "base")
    [block] = answer.content
    assert block.type == "text"
    assert block.text
    assert answer.usage.output_tokens == 6


async def test_a_streamed_message_arrives_event_by_event(anthropic: AsyncAnthropic) -> None:
    whole = await anthropic.messages.create(model="other", messages=HELLO, max_tokens=6)
    stream = await anthropic.messages.create(model="other", messages=HELLO, max_tokens=6, stream=True)
    kinds: list[str] = []
    text, output = "", 0
    async for event in stream:
        kinds.append(event.type)
        if event.type == "message_start":
            assert event.message.model == "other"
        elif event.type == "content_block_delta" and event.delta.type == "text_delta":
            text += event.delta.text
        elif event.type == "message_delta":
            output = event.usage.output_tokens
    assert whole.content[0].type == "text"
    assert (text, output) == (whole.content[0].text, whole.usage.output_tokens)
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


async def test_a_conversation_with_system_prompt_tools_and_blocks_of_every_kind(
    stack: LocalStack, anthropic: AsyncAnthropic
) -> None:
    tool: ToolParam = {
        "name": "set_points",
        "description": "Sets a pair of points",
        "input_schema": {"type": "object", "properties": {"to": {"type": "string"}}},
    }
    turns: list[MessageParam] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Which way does this go?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I'll set it."},
                {"type": "tool_use", "id": "toolu_1", "name": "set_points", "input": {"to": "left"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "locked"}]},
                {"type": "text", "text": "And now?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    counted = await anthropic.messages.count_tokens(model="base", system="Be brief.", messages=turns, tools=[tool])
    async with anthropic.messages.stream(
        model="base",
        system=[{"type": "text", "text": "Be brief."}],
        messages=turns,
        tools=[tool],
        tool_choice={"type": "auto"},
        max_tokens=6,
    ) as stream:
        answer = await stream.get_final_message()
        made = await decision(stack.pickers, stream.response.headers["x-request-id"])
    usage = answer.usage
    assert answer.stop_reason == "max_tokens"
    assert usage.output_tokens == 6
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens
    # the prompt as the picker has it: tools, system prompt, and every turn
    assert made["prompt_bytes"] > sum(map(len, (str(tool), "Be brief.", "Which way does this go?", "locked")))


async def test_errors_are_the_client_librarys_own(stack: LocalStack, anthropic: AsyncAnthropic) -> None:
    with pytest.raises(BadRequestError, match="messages") as bad:
        await anthropic.messages.create(model="base", messages=[], max_tokens=1)
    assert bad.value.type == "invalid_request_error"
    assert "x-simulator-endpoint" not in bad.value.response.headers
    with pytest.raises(BadRequestError, match="max_tokens") as bad:
        await anthropic.messages.create(model="base", messages=HELLO, max_tokens=0)
    assert "x-simulator-endpoint" in bad.value.response.headers
    with pytest.raises(NotFoundError, match="nothing-of-that-name") as unknown:
        await anthropic.messages.create(model="nothing-of-that-name", messages=HELLO, max_tokens=1)
    assert unknown.value.type == "not_found_error"


async def test_messages_with_one_long_system_prompt_go_to_one_endpoint(
    stack: LocalStack, anthropic: AsyncAnthropic
) -> None:
    """Each picker keeps its own index here, so each may have an endpoint of its own."""
    served: dict[str, set[str]] = {}
    cached: list[int] = []
    system = "You drive the night train over the mountains. " * 60
    for number in range(12):
        raw = await anthropic.messages.with_raw_response.create(
            model="base", system=system, messages=[{"role": "user", "content": str(number)}], max_tokens=8
        )
        cached.append((await raw.parse()).usage.cache_read_input_tokens or 0)
        for picker in stack.pickers:
            answer = await picker.get("/debug/decisions?limit=1000")
            if any(one["request_id"] == raw.headers["x-request-id"] for one in answer.json()["decisions"]):
                served.setdefault(picker.name, set()).add(raw.headers["x-simulator-endpoint"])
        await asyncio.sleep(0.15)  # the next scrape sees an idle server again
    assert served
    assert all(len(endpoints) == 1 for endpoints in served.values()), served
    assert sum(one > 600 for one in cached) >= len(cached) - len(stack.pickers), cached
