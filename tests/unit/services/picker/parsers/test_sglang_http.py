"""What `sglanghttp-parser` reads of requests to SGLang's own API, and of their responses."""

import json
from typing import Any

import pytest

from services.picker.parsers.sglang_http import SglangHttpParser
from services.picker.request import Content, Headers, Unparsable
from services.picker.responses.reader import ResponseReader
from services.picker.responses.usage import NOTHING, Usage

PARSER = SglangHttpParser("sglanghttp-parser")


def parse(body: Any) -> Content:
    return PARSER.parse("/generate", Headers(), body if isinstance(body, bytes) else json.dumps(body).encode())


def test_what_is_known_of_a_request() -> None:
    body = {
        "input_ids": [1, 258],
        "sampling_params": {"max_new_tokens": 64, "n": 2, "temperature": 0.8},
        "stream": True,
        "extra_key": "tenant",
        "lora_path": None,
    }
    assert parse(body) == Content(
        api="generate",
        stream=True,
        prompt=b"\x01\0\0\0\x02\x01\0\0",
        prompt_tokens=2,
        parallel=2,
        cache_salt="tenant",
        output_limit=64,
    )


@pytest.mark.parametrize(
    ("body", "prompt", "tokens", "parallel"),
    [
        ({"text": "Which way?"}, b"Which way?", None, 1),
        ({"text": ["a", "b"]}, b"a\nb", None, 2),
        ({"input_ids": [[1], [2, 3]]}, b"\x01\0\0\0\x02\0\0\0\x03\0\0\0", 3, 2),
        ({"input_ids": [1], "text": "ignored"}, b"\x01\0\0\0", 1, 1),
        ({"input_ids": [1], "sampling_params": [{"n": 3}]}, b"\x01\0\0\0", 1, 1),
        ({"input_embeds": [[0.1, 0.2]]}, b"", None, 1),
    ],
)
def test_what_the_model_reads(body: dict[str, Any], prompt: bytes, tokens: int | None, parallel: int) -> None:
    found = parse(body)
    assert (found.prompt, found.prompt_tokens, found.parallel) == (prompt, tokens, parallel)


@pytest.mark.parametrize(
    ("body", "model", "fixed"),
    [
        ({"model": "m"}, "m", False),
        ({"model": "m", "lora_path": "a"}, "a", True),
        ({"model": "m", "lora_path": ["a", "a"]}, "a", True),
        *[({"model": "m", "lora_path": none}, "m", False) for none in (None, "", [], [None, None])],
    ],
)
def test_an_adapter_is_the_model(body: dict[str, Any], model: str, fixed: bool) -> None:
    for text in ("x", ["[1, 2], "] * 50_000):
        found = parse({"text": text, **body})
        assert (found.model, found.model_fixed, found.takes_model) == (model, fixed, not fixed)


def test_pictures_make_equal_texts_differ() -> None:
    plain, cat, dog = [parse({"text": "What?", "image_data": picture}) for picture in (None, "cat.png", ["dog.png"])]
    assert [found.multimodal for found in (plain, cat, dog)] == [False, True, True]
    assert len({found.cache_salt for found in (plain, cat, dog)}) == 3


def test_a_salt_for_each_prompt_is_one_of_all() -> None:
    first, same, other = [parse({"text": ["a", "b"], "extra_key": keys}) for keys in (["x", "y"], ["x", "y"], ["x"])]
    assert first.cache_salt == same.cache_salt != other.cache_salt
    assert first.cache_salt


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the body is empty"),
        ({}, "input_ids: missing; token ids, or a text, are needed"),
        ({"input_ids": []}, "input_ids: empty; token ids, or a text, are needed"),
        ({"input_ids": [1, -1]}, "input_ids: -1 is no token id; a whole number from 0 to 4294967295 is needed"),
        ({"input_ids": [1, 2.5]}, "input_ids[1]: expected"),
        ({"text": "x", "lora_path": 5}, "lora_path: not a string: 5"),
        ({"text": ["x", "y"], "lora_path": ["a", 5]}, "lora_path: not a list of names"),
        ({"text": ["x", "y"], "lora_path": ["a", "b"]}, "lora_path: a list of several adapters"),
        ({"text": ["x", "y"], "lora_path": ["a", None]}, "lora_path: a list of several adapters"),
        ({"text": "x", "lora_path": ["a" * 300_000]}, "lora_path: the list has 300004 bytes; the limit is 262144"),
        ({"sampling_params": 5, "text": "x"}, "sampling_params: expected"),
    ],
)
def test_a_body_that_the_server_would_refuse_is_refused(body: Any, says: str) -> None:
    with pytest.raises(Unparsable) as caught:
        parse(body)
    assert str(caught.value).startswith(says), str(caught.value)


WHOLE = b'{"text":"hi","output_ids":[1,2],"meta_info":{"id":"r","finish_reason":{"type":"stop"},%s}}'


@pytest.mark.parametrize(
    ("counts", "usage"),
    [
        (b'"prompt_tokens":8,"completion_tokens":3,"cached_tokens":2', Usage(8, 3, 2)),
        (b'"prompt_tokens":8,"completion_tokens":3', Usage(8, 3, None)),
        (b'"prompt_tokens":-1', NOTHING),
        (b'"e2e_latency":0.1', NOTHING),
    ],
)
def test_the_tokens_of_a_response(counts: bytes, usage: Usage) -> None:
    for kind, body in (
        ("application/json", WHOLE % counts),
        ("text/event-stream", b"data: " + WHOLE % counts + b"\n\ndata: [DONE]\n\n"),
    ):
        reader = ResponseReader(api="generate")
        reader.begin(Headers([("content-type", kind)]))
        assert reader.feed(body, end=True) == body
        assert reader.usage == usage


def test_each_event_of_a_stream_has_the_tokens_so_far() -> None:
    reader = ResponseReader(api="generate")
    reader.begin(Headers([("content-type", "text/event-stream")]))
    for done in range(1, 4):
        reader.feed(b"data: " + WHOLE % b'"prompt_tokens":8,"completion_tokens":%d' % done + b"\n\n", end=False)
        assert reader.usage == Usage(8, done, None)
