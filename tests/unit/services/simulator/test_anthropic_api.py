"""Bodies of Anthropic's Messages API become the work that the same chat would be."""

import json
from typing import Any

import pytest

from services.simulator import anthropic_api, requests
from services.simulator.api_error import ApiError
from services.simulator.counters import FinishReason
from services.simulator.requests import Call
from tests.unit.services.simulator.scenario import prompt, settings

SETTINGS = settings(models=("base",), adapters=("tuned",), kv_blocks=250, output_tokens=10)
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"name": "switch", "description": "Switches", "input_schema": {"type": "object"}}


def message(**given: Any) -> Call:
    body = {"model": "base", "messages": HELLO, "max_tokens": 5, **given}
    return anthropic_api.messages(json.dumps(body).encode(), "1", SETTINGS)


def chat(**given: Any) -> Call:
    body = {"model": "base", "messages": HELLO, "max_tokens": 5, **given}
    return requests.chat(json.dumps(body).encode(), "1", SETTINGS)


def test_a_conversation_has_the_same_prompt_and_answer_as_the_same_chat() -> None:
    turns = [*HELLO, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Which way?"}]
    mine = message(messages=turns, system="Be brief.")
    other = chat(messages=[{"role": "system", "content": "Be brief."}, *turns])
    assert prompt(mine) == prompt(other)
    assert mine.choices[0].text == other.choices[0].text
    assert (mine.kind, mine.id) == ("message", "msg_1")


def test_blocks_of_text_are_their_text() -> None:
    blocks = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo", "cache_control": {"type": "ephemeral"}}]
    system = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    split = message(messages=[{"role": "user", "content": blocks}], system=system)
    assert prompt(split) == prompt(message(system="Be brief."))


def test_tools_come_first_as_in_a_chat() -> None:
    function = {"name": "switch", "description": "Switches", "parameters": {"type": "object"}}
    assert prompt(message(tools=[TOOL])) == prompt(chat(tools=[{"type": "function", "function": function}]))


def test_what_a_tool_gave_is_a_message_of_its_own_before_what_the_user_says_to_it() -> None:
    turns = [
        *HELLO,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "switch", "input": {"to": 2}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "done"}]},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    text = prompt(message(messages=turns)).decode()
    assert text.index('"name": "switch"') < text.index("tool\ndone") < text.index("user\nAnd now?")


def test_thoughts_are_text_and_pictures_a_digest() -> None:
    def picture(data: str) -> bytes:
        source = {"type": "base64", "media_type": "image/png", "data": data}
        return prompt(message(messages=[{"role": "user", "content": [{"type": "image", "source": source}]}]))

    assert picture("AAAA" * 500) == picture("AAAA" * 500) != picture("BBBB")
    assert len(picture("AAAA" * 500)) < 200
    thought = [{"type": "thinking", "thinking": "Left, then.", "signature": "s"}]
    assert b"Left, then." in prompt(message(messages=[*HELLO, {"role": "assistant", "content": thought}, *HELLO]))


def test_a_clients_billing_header_is_no_part_of_the_prompt() -> None:
    header = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1a2b3;"}
    assert prompt(message(system=[header, {"type": "text", "text": "Be brief."}])) == prompt(
        message(system="Be brief.")
    )
    assert prompt(message(system=[header])) == prompt(message())


def test_a_stop_sequence_ends_the_answer_and_is_named() -> None:
    text = message(max_tokens=50, ignore_eos=True).choices[0].text
    stop = text[41:47]
    [choice] = message(max_tokens=50, ignore_eos=True, stop_sequences=["never there", stop]).choices
    assert (choice.text, choice.stop, choice.request.finish) == (text.split(stop)[0], stop, FinishReason.STOP)
    assert message().choices[0].stop == ""


def test_counting_has_the_tokens_of_the_prompt() -> None:
    body = {"model": "base", "messages": HELLO, "system": "Be brief.", "tools": [TOOL]}
    model, tokens = anthropic_api.counted(json.dumps(body).encode(), SETTINGS)
    assert (model, tokens) == ("base", message(**body).choices[0].request.prompt.tokens)


@pytest.mark.parametrize(
    ("given", "status", "says"),
    [
        ({"messages": []}, 400, "messages: [] has no message"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "robot"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, 400, "type"),
        ({"max_tokens": 0}, 400, "max_tokens: 0 is too small"),
        ({"max_tokens": None}, 400, "max_tokens"),
        ({"model": "none"}, 404, "`none` does not exist"),
        ({"tools": [{"input_schema": {}}]}, 400, "name"),
    ],
)
def test_what_cant_be_used_is_refused(given: dict[str, Any], status: int, says: str) -> None:
    with pytest.raises(ApiError) as caught:
        message(**given)
    assert caught.value.status == status
    assert says in caught.value.message


def test_counting_refuses_as_well() -> None:
    with pytest.raises(ApiError, match="`none` does not exist"):
        anthropic_api.counted(json.dumps({"model": "none", "messages": HELLO}).encode(), SETTINGS)
    with pytest.raises(ApiError, match="not JSON"):
        anthropic_api.counted(b"{", SETTINGS)
