"""What `openai-parser` reads, and what it refuses with which words."""

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.parsers.openai import OpenAIParser
from services.picker.request import Content, Headers, Unparsable

CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, CONVERSATIONS, IMAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/conversations",
    "/v1/images/generations",
)
RENDER_CHAT, RENDER_COMPLETIONS = "/v1/chat/completions/render", "/v1/completions/render"
PATHS = [CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, CONVERSATIONS, IMAGES, RENDER_CHAT, RENDER_COMPLETIONS]
PARSER = OpenAIParser("openai-parser")


def parse(path: str, body: Any) -> Content:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return PARSER.parse(path, Headers(), data)


def chat(*messages: Any, **fields: Any) -> Content:
    return parse(CHAT, {"model": "base", "messages": list(messages), **fields})


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


# -- the API and its fields


@pytest.mark.parametrize(
    ("path", "body", "api", "prompt"),
    [
        (CHAT, {"messages": [user("hi")]}, "chat", b"user\nhi\n"),
        (COMPLETIONS, {"prompt": "Once upon"}, "completions", b"Once upon"),
        (EMBEDDINGS, {"input": "embed me"}, "embeddings", b"embed me"),
        (RESPONSES, {"input": "respond"}, "responses", b"user\nrespond\n"),
        (IMAGES, {"prompt": "a signal box"}, "images", b"a signal box"),
        ("/tenant/7/openai/v1/chat/completions", {"messages": [user("x")]}, "chat", b"user\nx\n"),
    ],
)
def test_each_api_has_its_prompt(path: str, body: dict[str, Any], api: str, prompt: bytes) -> None:
    expected = Content(api=api, model="base", takes_model=True, prompt=prompt)
    assert parse(path, {"model": "base", **body}) == expected
    for missing in ({}, {"model": None}, {"model": ""}):  # left to the decision
        assert parse(path, {**body, **missing}) == msgspec.structs.replace(expected, model="")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (RENDER_CHAT, {"messages": [user("hi")], "stream": True, "n": 3, "max_tokens": 9}),
        (RENDER_COMPLETIONS, {"prompt": ["hi", "there"]}),
    ],
)
def test_what_is_only_rendered_costs_nothing(path: str, body: dict[str, Any]) -> None:
    """No model reads it, so it neither fills a cache nor counts as load."""
    assert parse(path, {"model": "m", **body}) == Content(
        api="render", model="m", takes_model=True, unread=True, prompt_tokens=0
    )


def test_a_conversation_is_only_kept() -> None:
    found = parse(CONVERSATIONS, {"items": [{"type": "message", "role": "user", "content": 5}], "metadata": {}})
    assert found == Content(api="conversations", unread=True, prompt_tokens=0)


@pytest.mark.parametrize(("sent", "takes"), [({}, False), ({"model": ""}, False), ({"model": "m"}, True)])
def test_a_conversation_needs_no_model(sent: dict[str, Any], takes: bool) -> None:
    found = parse(CONVERSATIONS, {"items": [{}], **sent})
    assert (found.model, found.takes_model) == (sent.get("model", ""), takes)


@pytest.mark.parametrize(
    ("path", "fields", "attribute", "value"),
    [
        (CHAT, {"n": 4}, "parallel", 4),
        (CHAT, {"n": 0}, "parallel", 1),
        (CHAT, {"n": None}, "parallel", 1),
        (CHAT, {"n": "many"}, "parallel", 1),
        (CHAT, {"n": 10**30}, "parallel", 1),
        (COMPLETIONS, {"prompt": ["a", "b", "c"], "n": 2}, "parallel", 6),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, "parallel", 1),
        (COMPLETIONS, {"prompt": [[1], [2, 3]], "n": 2.0}, "parallel", 4),
        (EMBEDDINGS, {"input": ["a", "b"], "n": 2}, "parallel", 2),
        (IMAGES, {"n": 2}, "parallel", 2),
        (RESPONSES, {"n": 2}, "parallel", 1),
        (CHAT, {"stream": True}, "stream", True),
        (CHAT, {"stream": False}, "stream", False),
        (CHAT, {"stream": None}, "stream", False),
        (CHAT, {"stream": "true"}, "stream", False),
        (CHAT, {"stream": 1}, "stream", False),
        (CHAT, {"cache_salt": "tenant-7"}, "cache_salt", "tenant-7"),
        (CHAT, {"cache_salt": None}, "cache_salt", ""),
        (CHAT, {"cache_salt": 5}, "cache_salt", ""),
        (CHAT, {"max_tokens": 10}, "output_limit", 10),
        (CHAT, {"max_tokens": 10, "max_completion_tokens": 20}, "output_limit", 20),
        (CHAT, {"max_tokens": 10, "max_completion_tokens": None}, "output_limit", 10),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": "many"}, "output_limit", 5),
        (COMPLETIONS, {"max_tokens": 0}, "output_limit", 0),
        (RESPONSES, {"max_output_tokens": 7, "max_tokens": 9}, "output_limit", 7),
        (EMBEDDINGS, {"max_tokens": 9}, "output_limit", None),
        (COMPLETIONS, {"max_tokens": 16.0}, "output_limit", 16),
        (COMPLETIONS, {"max_tokens": 1.5}, "output_limit", None),
        (COMPLETIONS, {"max_tokens": 1e300}, "output_limit", None),
        (COMPLETIONS, {"max_tokens": True}, "output_limit", None),
    ],
)
def test_a_field_counts_where_the_server_could_read_it(
    path: str, fields: dict[str, Any], attribute: str, value: Any
) -> None:
    body = {"model": "m", "messages": [user("x")], "prompt": "x", "input": "x", **fields}
    assert getattr(parse(path, body), attribute) == value


def test_what_nobody_reads_may_be_anything() -> None:
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"x","extra":{}}],"temperature":"warm","n":null,'
        b'"logit_bias":{"5":-100},"new":[[{"deep":1e400}]],"seed":123456789012345678901234567890,"x":"\xff"}'
    )
    assert parse(CHAT, body).prompt == b"user\nx\n"


def test_the_last_of_equal_keys_counts() -> None:
    assert parse(COMPLETIONS, b'{"model":"a","prompt":"x","model":"b"}').model == "b"


def test_a_model_may_be_written_with_escapes() -> None:
    assert parse(COMPLETIONS, rb'{"mod\u0065l":"caf\u00e9\/x","prompt":"x"}').model == "café/x"


# -- the prompt


@pytest.mark.parametrize(
    ("prompt", "laid_out", "tokens"),
    [
        ("text", b"text", None),
        (["one", "two"], b"one\ntwo", None),
        ([1, 258], b"\x01\0\0\0\x02\x01\0\0", 2),
        ([[1], [2, 4294967295]], b"\x01\0\0\0\x02\0\0\0\xff\xff\xff\xff", 3),
        ("größe", "größe".encode(), None),
    ],
)
@pytest.mark.parametrize(("path", "field"), [(COMPLETIONS, "prompt"), (EMBEDDINGS, "input")])
def test_the_forms_of_a_prompt(path: str, field: str, prompt: Any, laid_out: bytes, tokens: int | None) -> None:
    found = parse(path, {"model": "m", field: prompt})
    assert (found.prompt, found.prompt_tokens) == (laid_out, tokens)


DIALOGUE = [
    {"role": "system", "content": "Be kind."},
    user(["plain", {"type": "text", "text": "and typed"}]),
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
    {"role": "tool"},
]
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"},
    {"type": "function_call_output", "output": "done", "call_id": "1"},
    "bare",
]


@pytest.mark.parametrize(
    ("path", "fields", "prompt"),
    [
        (COMPLETIONS, {"prompt_embeds": "AAAA"}, b""),
        (EMBEDDINGS, {"messages": [user("x")]}, b"user\nx\n"),
        (CHAT, {"messages": [user([{"type": "text", "text": "hi"}])]}, b"user\nhi\n"),
        (
            CHAT,
            {"messages": DIALOGUE},
            b'system\nBe kind.\nuser\nplain\nand typed\nassistant\n[{"id": "1"}]\ntool\n\n',
        ),
        # first, as templates put them
        (
            CHAT,
            {"messages": [user("hi")], "tools": [{"name": "f"}], "documents": [{"text": "d"}], "chat_template": None},
            b'[{"name": "f"}]\n[{"text": "d"}]\nuser\nhi\n',
        ),
        (
            RESPONSES,
            {"instructions": "Be kind.", "tools": [{"a": 1}], "input": ITEMS},
            b'[{"a": 1}]\nsystem\nBe kind.\nuser\nhi\n\n"f""{}"\n\n"done"\nuser\nbare\n',
        ),
        *((RESPONSES, {"input": "x", "instructions": no_text}, b"user\nx\n") for no_text in (None, 5, ["x"])),
        # it may go on from an earlier response or a stored prompt
        (RESPONSES, {"input": ""}, b"user\n\n"),
        (RESPONSES, {"input": []}, b""),
    ],
)
def test_a_prompt_is_laid_out_message_by_message(path: str, fields: dict[str, Any], prompt: bytes) -> None:
    assert parse(path, {"model": "m", **fields}).prompt == prompt


def test_texts_and_pictures_can_be_embedded() -> None:
    found = parse(EMBEDDINGS, {"model": "m", "input": [{"text": "one"}, {"image": "https://example.com/a.png"}]})
    assert found.prompt.startswith(b"one\n<image ")
    assert found.parallel == 2


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "image_url", "image_url": "https://example.com/a.png"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}},
    ],
)
def test_parts_that_are_no_text_stand_as_short_digests(part: dict[str, Any]) -> None:
    kind = part["type"]
    small = chat(user([part])).prompt
    large = chat(user([part | {kind: "x" * 100_000}])).prompt
    assert small.startswith(f"user\n<{kind} ".encode())
    assert small == chat(user([part])).prompt
    assert small != large
    assert len(small) == len(large) < 60


TEXTS = st.text(max_size=20)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant"])},
        optional={
            "content": st.one_of(
                st.none(), TEXTS, st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}))
            ),
            "tool_calls": st.lists(TEXTS),
        },
    ),
    min_size=1,
    max_size=5,
)


@given(messages=MESSAGES, tools=st.lists(TEXTS, max_size=2), cut=st.integers(1, 5))
def test_a_dialogue_that_goes_on_has_the_earlier_prompt_as_its_prefix(
    messages: list[dict[str, Any]], tools: list[str], cut: int
) -> None:
    whole, beginning = chat(*messages, tools=tools), chat(*messages[:cut], tools=tools)
    assert whole.prompt.startswith(beginning.prompt)


# -- refusals

DEEP = b'{"model":"m","prompt":"x","other":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        (CHAT, b"", "the body is empty; a JSON object is needed"),
        (CHAT, b"   ", "the body isn't valid JSON: "),
        (CHAT, b"no healthy upstream", "the body isn't valid JSON: "),
        (CHAT, b'{"model": "m"', "the body isn't valid JSON: "),
        (CHAT, b"null", "the body: expected object, got null"),
        (CHAT, b"[1]", "the body: expected object, got array"),
        (CHAT, {"model": "m"}, "messages: missing; a non-empty list of messages is needed"),
        (CHAT, {"model": "m", "messages": None}, "messages: missing; a non-empty list of messages is needed"),
        (CHAT, {"model": "m", "messages": []}, "messages: empty; a non-empty list of messages is needed"),
        (CHAT, {"model": "m", "messages": "hi"}, 'messages: expected array | null, got str: "hi"'),
        (CHAT, {"model": "m", "messages": ["hi"]}, 'messages[0]: expected object, got str: "hi"'),
        (
            CHAT,
            {"model": "m", "messages": [user("x"), user(5)]},
            "messages[1].content: expected str | array | null, got int: 5",
        ),
        (CHAT, {"model": "m", "messages": [{"role": [1]}]}, "messages[0].role: expected str | null, got array: [1]"),
        (
            CHAT,
            {"model": "m", "messages": [user([{"text": 5}])]},
            "messages[0].content[0].text: expected str | null, got int: 5",
        ),
        (COMPLETIONS, {"model": "m"}, "prompt: missing; a text, a list of texts, or token ids are needed"),
        (COMPLETIONS, {"model": "m", "prompt": ""}, "prompt: empty; a text, a list of texts, or token ids are needed"),
        (COMPLETIONS, {"model": "m", "prompt": []}, "prompt: empty; a text, a list of texts, or token ids are needed"),
        (COMPLETIONS, {"model": "m", "prompt": {"a": 1}}, 'prompt: expected str | array | null, got object: {"a": 1}'),
        (COMPLETIONS, {"model": "m", "prompt": ["a", 1]}, "prompt: a list that mixes texts, token ids and lists"),
        (COMPLETIONS, {"model": "m", "prompt": [1, -2]}, "prompt: -2 is no token id; a whole number from 0 to"),
        (COMPLETIONS, {"model": "m", "prompt": [[1], [2**32]]}, "prompt: 4294967296 is no token id"),
        (COMPLETIONS, {"model": "m", "prompt": [10**60]}, "prompt: 10000000000000000000 is no token id"),
        (COMPLETIONS, {"model": "m", "prompt": [1.5]}, "prompt[0]: expected int | str | array, got float: 1.5"),
        (EMBEDDINGS, {"model": "m"}, "input: missing; a text, a list of texts, or token ids are needed"),
        (EMBEDDINGS, {"model": "m", "input": ""}, "input: empty; a text, a list of texts, or token ids are needed"),
        (EMBEDDINGS, {"model": "m", "input": ["a", {"text": "b"}]}, "input: a list that mixes texts, token ids and"),
        (RESPONSES, {"model": "m"}, "input: missing; a text or a list of items is needed"),
        (RESPONSES, {"model": "m", "input": None}, "input: missing; a text or a list of items is needed"),
        (RESPONSES, {"model": "m", "input": 7}, "input: expected str | array | null, got int: 7"),
        (CONVERSATIONS, {"model": "m"}, "items: missing; a non-empty list of items is needed"),
        (CONVERSATIONS, {"model": "m", "items": []}, "items: empty; a non-empty list of items is needed"),
        (CONVERSATIONS, {"model": "m", "items": {}}, "items: expected array | null, got object: {}"),
        (IMAGES, {"model": "m"}, "prompt: missing; invalid images generations request: must have prompt field"),
        (IMAGES, {"model": "m", "prompt": ""}, "prompt: empty; invalid images generations request: must have prompt"),
        (IMAGES, {"model": "m", "prompt": ["x"]}, 'prompt: expected str | null, got array: ["x"]'),
        (RENDER_CHAT, {"model": "m"}, "messages: missing; a non-empty list of messages is needed"),
        (RENDER_COMPLETIONS, {"model": "m"}, "prompt: missing; a text, a list of texts, or token ids are needed"),
        (RENDER_COMPLETIONS, {"model": 5, "prompt": "x"}, "model: not a string: 5; a model name"),
        (COMPLETIONS, {"prompt": "x", "model": ["m"]}, 'model: not a string: ["m"]; a model name'),
        (COMPLETIONS, {"prompt": "x", "model": 10**30}, "model: not a string: 1000000000000000000000000000000;"),
        (COMPLETIONS, b'{"prompt":"x","model":1e999}', "model: not a string: 1e999; a model name"),
        (COMPLETIONS, b'{"prompt":"x","model":' + b"9" * 9999 + b"}", "model: not a string: 9999"),
        (COMPLETIONS, b'{"prompt":"\xff","model":"m"}', "the body isn't valid JSON: 'utf-8' codec"),
        (COMPLETIONS, b'{"prompt":"x","model":"\xff"}', "the body isn't valid JSON: 'utf-8' codec"),
        (COMPLETIONS, b'{"prompt":5,"model":', "prompt: expected str | array | null, got int"),
        (COMPLETIONS, DEEP, "the body is nested too deeply"),
        (COMPLETIONS, b"\xef\xbb\xbf{}", "the body isn't valid JSON: "),
        (COMPLETIONS, b'{"prompt":NaN,"model":"m"}', "the body isn't valid JSON: "),
    ],
)
def test_a_body_that_the_server_would_refuse_is_refused_with_field_and_value(path: str, body: Any, says: str) -> None:
    with pytest.raises(Unparsable) as caught:
        parse(path, body)
    assert str(caught.value).startswith(says), str(caught.value)


def test_a_large_wrong_value_is_shown_short() -> None:
    with pytest.raises(Unparsable) as caught:
        parse(CHAT, {"model": "m", "messages": {"x" * 10_000: 1}})
    assert len(str(caught.value)) < 150
    assert str(caught.value).endswith("…")


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)
READ = ["model", "messages", "prompt", "input", "items", "n", "stream", "tools", "max_tokens", "cache_salt", "role"]
FIELDS = st.sampled_from([*READ, "instructions"])


@given(path=st.sampled_from(PATHS), body=st.dictionaries(FIELDS, JSON))
def test_any_json_is_read_or_refused(path: str, body: dict[str, Any]) -> None:
    with suppress(Unparsable):
        assert parse(path, body).model == (body.get("model") or "")


@given(path=st.sampled_from(PATHS), body=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(path: str, body: bytes) -> None:
    with suppress(Unparsable):
        assert parse(path, b'{"model":"m",' + body).api
