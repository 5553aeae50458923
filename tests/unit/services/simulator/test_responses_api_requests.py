"""Bodies of the Responses API become the work that the same chat would be."""

import json
from typing import Any

import pytest

from services.simulator import requests, responses_api
from services.simulator.api_error import ApiError
from services.simulator.counters import FinishReason
from services.simulator.requests import Call
from tests.unit.services.simulator.scenario import prompt, settings

SETTINGS = settings(models=("base",), adapters=("tuned",), kv_blocks=250, output_tokens=10)
HELLO = [{"role": "user", "content": "Hello"}]
PARAMETERS = {"type": "object", "properties": {"to": {"type": "string"}}}


def response(**given: Any) -> Call:
    body = {"model": "base", "input": "Hello", "max_output_tokens": 5, **given}
    return responses_api.responses(json.dumps(body).encode(), "1", SETTINGS)[0]


def chat(**given: Any) -> Call:
    body = {"model": "base", "messages": HELLO, "max_tokens": 5, **given}
    return requests.chat(json.dumps(body).encode(), "1", SETTINGS)


def test_a_text_has_the_same_prompt_and_answer_as_the_same_chat() -> None:
    mine, other = (
        response(instructions="Be brief."),
        chat(messages=[{"role": "system", "content": "Be brief."}, *HELLO]),
    )
    assert prompt(mine) == prompt(other)
    assert mine.choices[0].text == other.choices[0].text
    assert (mine.kind, mine.id) == ("response", "resp_1")


def test_messages_are_those_of_a_chat_and_their_parts_are_text() -> None:
    parts = [{"type": "output_text", "text": "Ye", "annotations": []}, {"type": "output_text", "text": "s?"}]
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": parts},
        {"type": "message", "role": "user", "content": "Which way?"},
    ]
    turns = [*HELLO, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Which way?"}]
    assert prompt(response(input=items)) == prompt(chat(messages=turns))


def test_tools_calls_and_outputs_are_those_of_a_chat() -> None:
    function = {"name": "switch", "description": "Switches", "parameters": PARAMETERS}
    items = [
        *HELLO,
        {"role": "assistant", "content": "I'll set it."},
        {"type": "function_call", "call_id": "c1", "name": "switch", "arguments": '{"to": "left"}'},
        {"type": "function_call", "call_id": "c2", "name": "switch", "arguments": '{"to": "right"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "locked"},
    ]

    def call(id: str, to: str) -> dict[str, Any]:
        return {"id": id, "type": "function", "function": {"name": "switch", "arguments": json.dumps({"to": to})}}

    turns = [
        *HELLO,
        {"role": "assistant", "content": "I'll set it.", "tool_calls": [call("c1", "left"), call("c2", "right")]},
        {"role": "tool", "tool_call_id": "c1", "content": "locked"},
    ]
    tools = [{"type": "function", **function}, {"type": "web_search"}]
    same = chat(messages=turns, tools=[{"type": "function", "function": function}])
    assert prompt(response(input=items, tools=tools)) == prompt(same)


def test_a_call_without_words_before_it_is_a_message_of_its_own() -> None:
    items = [*HELLO, {"type": "function_call", "call_id": "c", "name": "switch", "arguments": "{}"}]
    call = {"id": "c", "type": "function", "function": {"name": "switch", "arguments": "{}"}}
    turns = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert prompt(response(input=items)) == prompt(chat(messages=turns))


def test_thoughts_are_text_and_pictures_a_digest() -> None:
    def picture(data: str) -> bytes:
        part = {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}
        return prompt(response(input=[{"role": "user", "content": [part]}]))

    assert picture("AAAA" * 500) == picture("AAAA" * 500) != picture("BBBB")
    assert len(picture("AAAA" * 500)) < 200
    for field in ("content", "summary"):
        thought = {"type": "reasoning", "id": "rs_1", field: [{"type": "summary_text", "text": "Left, then."}]}
        assert b"Left, then." in prompt(response(input=[*HELLO, thought]))


def test_an_answer_is_cut_at_its_limit_or_ends_by_itself() -> None:
    assert response(max_output_tokens=3).choices[0].request.output_tokens == 3
    [choice] = response(max_output_tokens=None).choices
    assert choice.request.finish is FinishReason.STOP
    assert response(ignore_eos=True, max_output_tokens=400).choices[0].request.output_tokens == 400


@pytest.mark.parametrize(
    ("given", "status", "says"),
    [
        ({"input": None}, 400, "input"),
        ({"input": [{"content": "Hello"}]}, 400, "a message without a role"),
        ({"input": [{"role": "user", "content": "Hello"}, {"type": "item_reference"}]}, 400, "item_reference"),
        ({"max_output_tokens": 0}, 400, "max_output_tokens: 0 is too small"),
        ({"model": "none"}, 404, "`none` does not exist"),
        ({"previous_response_id": "resp_9"}, 404, "'resp_9' not found"),
    ],
)
def test_what_cant_be_used_is_refused(given: dict[str, Any], status: int, says: str) -> None:
    with pytest.raises(ApiError) as caught:
        response(**given)
    assert caught.value.status == status
    assert says in caught.value.message
