"""Bodies that would take long to decode: what is still known of them, and which are refused."""

import json
from typing import Any

import pytest

from services.picker.parsers.json_body import MAX_NAME
from services.picker.parsers.json_counts import MAX_DECODED
from services.picker.parsers.json_values import JsonParameters
from services.picker.parsers.openai import OpenAIParser
from services.picker.request import Content, Unparsable
from tests.unit.services.picker.parsers.test_bad_input import HEADERS, outcome

PATHS = {
    # path: field that holds the prompt, the fields beside it
    "/v1/chat/completions": ("messages", {"max_tokens": 7, "n": 3}),
    "/v1/completions": ("prompt", {"max_tokens": 7, "n": 3}),
    "/v1/embeddings": ("input", {}),
    "/v1/responses": ("input", {"max_output_tokens": 7}),
    "/v1/messages": ("messages", {"max_tokens": 7}),
    "/inference/v1/generate": ("token_ids", {"sampling_params": {"max_tokens": 7, "n": 3}}),
}
TURNS = [{"role": "user", "content": f"{number}"} for number in range(20_000)]
MANY = 200_000


def sent(field: str, value: Any, **others: Any) -> bytes:
    return json.dumps({"model": "m", "stream": True, "cache_salt": "s", field: value, **others}).encode()


def read(path: str, body: bytes) -> Content:
    found = outcome(path, body)
    assert isinstance(found, Content), found
    return found


@pytest.mark.parametrize(("path", "field", "others"), [(path, *fields) for path, fields in PATHS.items()])
def test_all_but_the_prompt_is_read_of_a_body_with_many_objects(path: str, field: str, others: dict[str, Any]) -> None:
    content = read(path, sent(field, TURNS, **others))
    assert (content.model, content.stream, content.cache_salt) == ("m", True, "s")
    assert content.output_limit == (7 if others else None)
    assert content.parallel == (3 if "'n'" in str(others) else 1)
    assert content.prompt == json.dumps(TURNS).encode() + b"\n", "the JSON text itself"


@pytest.mark.parametrize(("path", "field"), [(path, field) for path, (field, _) in PATHS.items()])
def test_a_conversation_that_goes_on_has_the_earlier_prompt_as_its_prefix(path: str, field: str) -> None:
    first = read(path, sent(field, TURNS, tools=[{"name": "t"}]))
    longer = read(path, sent(field, [*TURNS, {"role": "assistant", "content": "x"}], tools=[{"name": "t"}]))
    assert longer.prompt.startswith(first.prompt[: -len(b"]\n")])
    assert len(longer.prompt) > len(first.prompt)


@pytest.mark.parametrize(
    ("path", "field", "value", "tokens", "parallel"),
    [
        ("/v1/completions", "prompt", [7] * MANY, MANY, 1),
        ("/v1/completions", "prompt", [[7, 8]] * MANY, 2 * MANY, MANY),
        ("/v1/completions", "prompt", ["a"] * MANY, None, MANY),
        ("/v1/embeddings", "input", ["a"] * MANY, None, MANY),
        ("/v1/embeddings", "input", [7] * MANY, MANY, 1),
        ("/v1/responses", "input", ["a"] * MANY, None, 1),
        ("/inference/v1/generate", "token_ids", [7] * MANY, MANY, 1),
        ("/v1/chat/completions/render", "messages", TURNS, 0, 1),
        ("/v1/conversations", "items", TURNS, 0, 1),
    ],
)
def test_ids_and_prompts_are_counted(path: str, field: str, value: Any, tokens: int | None, parallel: int) -> None:
    content = read(path, sent(field, value))
    assert (content.prompt_tokens, content.parallel) == (tokens, parallel)


def with_picture(data: str) -> bytes:
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    text = {"type": "text", "text": "what is it? " * 1000}
    return sent("messages", [{"role": "user", "content": [picture, text]}])


def test_pictures_stand_as_digests() -> None:
    cat, dog = "iVBO" * MAX_DECODED, "iVBP" * MAX_DECODED
    first, same, other = (read("/v1/chat/completions", with_picture(animal)) for animal in (cat, cat, dog))
    assert first.prompt == same.prompt != other.prompt
    assert b"what is it? what" in first.prompt
    assert len(first.prompt) < 20_000, "they count as no text"


@pytest.mark.parametrize(
    "text", ['{"a": [1, 2]}, ' * 30_000, "世界" * 500_000, "for (i = 0; i < n; i++) { a[i] = b[i]; }\n" * 40_000]
)
def test_a_long_text_full_of_marks_isnt_refused(text: str) -> None:
    for ascii_only in (True, False):
        body = json.dumps({"model": "m", "messages": [{"content": text}]}, ensure_ascii=ascii_only).encode()
        content = read("/v1/chat/completions", body)
        assert content.model == "m"
        assert content.prompt


def test_of_a_prompt_that_is_too_long_the_beginning_is_kept_and_all_of_it_counted() -> None:
    content = read("/v1/completions", sent("prompt", "word " * 10**6))
    assert len(content.prompt) == MAX_DECODED + 1
    assert content.prompt_tokens == pytest.approx(1_250_000, rel=0.001)


@pytest.mark.parametrize(
    ("most", "body", "says"),
    [
        (JsonParameters(), b"[%s0]" % (b"0," * 500_001), "500001 commas; the limit is 500000"),
        (JsonParameters(), b"[" * 250_001, "250001 opening braces and brackets; the limit is 250000"),
        (
            JsonParameters(),
            b'"%s"' % (b"\\n" * 5_000_000),
            "10000002 bytes that aren't base64; the limit is 8388608",
        ),
        (JsonParameters(max_text_bytes=10), b" " * 20, "20 bytes that aren't base64; the limit is 10"),
    ],
)
def test_a_body_beyond_the_limits_is_refused(most: JsonParameters, body: bytes, says: str) -> None:
    with pytest.raises(Unparsable, match=says):
        OpenAIParser("p", most).parse("/v1/completions", HEADERS, body)


def test_a_name_is_decoded_and_a_salt_kept_up_to_a_length() -> None:
    body = b'{"model":"%s","cache_salt":"%s","prompt":"hi"}'
    assert "the limit is 65536" in str(outcome("/v1/completions", body % (b"m" * 7 * MAX_NAME, b"s")))
    short, long, other = (
        read("/v1/completions", body % (b"m", salt)) for salt in (b"s" * 1022, b"s" * 9999, b"t" * 9999)
    )
    assert short.cache_salt == "s" * 1022
    assert long.cache_salt != other.cache_salt
    assert len(long.cache_salt) == 32


@pytest.mark.parametrize("before", [0, 1, 30_000, 65_473, 65_500, 65_535])
@pytest.mark.parametrize(("digits", "decoded"), [(64, True), (65, False), (4290, False), (65_576, False)])
def test_a_body_with_long_numbers_isnt_decoded(digits: int, decoded: bool, before: int) -> None:
    body = b'{"model":"m",%s"prompt":"%s%s"}' % (b" " * before, b"9" * digits, b" a" * 20_000)
    content = read("/v1/completions", body)
    assert content.model == "m"
    assert content.prompt.startswith(b"9" if decoded else b'"9')


def test_a_number_that_is_too_long_is_none() -> None:
    assert read("/v1/completions", b'{"model":"m","prompt":"hi","max_tokens":%s}' % (b"9" * 10**6)).output_limit is None
