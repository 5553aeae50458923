"""What `anthropic-parser` reads of the Messages API, and what it refuses with which words."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.parsers.anthropic import AnthropicParser
from services.picker.parsers.openai import OpenAIParser
from services.picker.request import Content, Headers, Unparsable

PARSER = AnthropicParser("anthropic-parser")
MESSAGES, COUNT_TOKENS = "/v1/messages", "/v1/messages/count_tokens"


def parse(body: Any, path: str = MESSAGES) -> Content:
    return PARSER.parse(path, Headers(), body if isinstance(body, bytes) else json.dumps(body).encode())


def ask(*messages: Any, **fields: Any) -> Content:
    return parse({"model": "base", "max_tokens": 64, "messages": list(messages), **fields})


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_what_is_known_of_a_request() -> None:
    assert ask(user("hi"), stream=True, cache_salt="tenant") == Content(
        api="messages",
        model="base",
        takes_model=True,
        stream=True,
        prompt=b"user\nhi\n",
        cache_salt="tenant",
        output_limit=64,
    )


@pytest.mark.parametrize("sent", [{}, {"model": None}, {"model": ""}])
def test_a_missing_model_is_left_to_the_decision(sent: dict[str, Any]) -> None:
    found = parse({"messages": [user("x")], **sent})
    assert (found.model, found.takes_model) == ("", True)


@pytest.mark.parametrize(("sent", "limit"), [(1, 1), (None, None), (-1, None), ("many", None), (10**40, None)])
def test_the_output_limit(sent: Any, limit: int | None) -> None:
    assert ask(user("x"), max_tokens=sent).output_limit == limit


@pytest.mark.parametrize(
    "system", ["Be kind.", [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]]
)
def test_tools_and_the_system_prompt_lead(system: Any) -> None:
    found = ask(user("hi"), system=system, tools=[{"name": "f"}])
    assert found.prompt == b'[{"name": "f"}]\nsystem\nBe kind.\nuser\nhi\n'


def test_a_clients_attribution_is_no_part_of_the_prompt() -> None:
    """It changes with every request; servers drop it, and so does the prompt."""
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=8f2e1;"},
        {"type": "text", "text": "Be kind."},
    ]
    assert ask(user("hi"), system=system).prompt == ask(user("hi"), system=system[1:]).prompt


def test_blocks_are_laid_out_in_their_order() -> None:
    found = ask(
        user([{"type": "text", "text": "look"}, {"type": "text", "text": "here"}]),
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "b3BhcXVl"},
                {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"q": 1}},
            ],
        },
        user([{"type": "tool_result", "tool_use_id": "toolu_1", "content": "found"}]),
        user([{"type": "tool_result", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]),
        {"role": "assistant", "content": None},
    )
    assert found.prompt == (
        b'user\nlook\nhere\nassistant\nhm\n\n"find"{"q": 1}\nuser\nfound\nuser\na\nb\nassistant\n\n'
    )


@pytest.mark.parametrize("nested", [False, True])
def test_pictures_stand_as_short_digests(nested: bool) -> None:
    def prompt(source: dict[str, str]) -> bytes:
        image = {"type": "image", "source": source}
        return ask(user([{"type": "tool_result", "content": [image]} if nested else image])).prompt

    first, other = prompt({"type": "base64", "data": "A" * 100_000}), prompt({"type": "url", "url": "https://e.com/a"})
    assert first.startswith(b"user\n<source ")
    assert first == prompt({"type": "base64", "data": "A" * 100_000})
    assert first != other
    assert len(first) == len(other) < 60


TURNS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=20)}),
    min_size=1,
    max_size=5,
)


@given(turns=TURNS, system=st.text(max_size=9))
def test_a_conversation_has_the_same_prompt_as_under_the_openai_api(turns: list[dict[str, Any]], system: str) -> None:
    chat = {"model": "base", "messages": [{"role": "system", "content": system}, *turns]}
    other = OpenAIParser("openai").parse("/v1/chat/completions", Headers(), json.dumps(chat).encode())
    assert ask(*turns, system=system).prompt == other.prompt


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the body is empty; a JSON object is needed"),
        (b"[]", "the body: expected object, got array"),
        ({"model": "m"}, "messages: missing; invalid messages request: must have at least one message"),
        ({"model": "m", "messages": []}, "messages: empty; invalid messages request: must have at least one message"),
        ({"model": "m", "messages": "hi"}, 'messages: expected array | null, got str: "hi"'),
        ({"model": "m", "messages": [user(5)]}, "messages[0].content: expected str | array | null, got int: 5"),
        ({"model": ["m"], "messages": [user("x")]}, 'model: not a string: ["m"]; a model name'),
        ({"model": "m", "messages": [user("x")], "system": 5}, "system: expected str | array | null, got int: 5"),
    ],
)
def test_a_body_that_the_server_would_refuse_is_refused(body: Any, says: str) -> None:
    with pytest.raises(Unparsable) as caught:
        parse(body)
    assert str(caught.value).startswith(says), str(caught.value)


@pytest.mark.parametrize(
    ("body", "model", "read"),
    [
        (b"", "", False),
        (b"no json", "", False),
        (b"[]", "", False),
        ({"messages": []}, "", True),
        ({"model": 5}, "", True),
        (b'{"model":"\xff"}', "", False),
        (b'{"model":"base","x":NaN}', "", False),
        ({"model": "base", "messages": "whatever"}, "base", True),
    ],
)
def test_a_request_to_count_tokens_passes_whatever_it_is(body: Any, model: str, read: bool) -> None:
    """Its model is read, so that it is the one that the messages themselves go to. Only a closed pool refuses a body
    that can't be read."""
    expected = Content(api="count_tokens", model=model, takes_model=bool(model), unread=read, prompt_tokens=0)
    assert parse(body, COUNT_TOKENS) == expected
