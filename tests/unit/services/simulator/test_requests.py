import json
from typing import Any

import pytest

from services.simulator import requests
from services.simulator.api_error import ApiError
from services.simulator.counters import FinishReason
from services.simulator.requests import Call
from tests.unit.services.simulator.scenario import settings

SETTINGS = settings(models=("base", "other"), adapters=("tuned",), kv_blocks=250, output_tokens=10)
HELLO = [{"role": "user", "content": "Hello"}]


def chat(**given: Any) -> Call:
    return requests.chat(json.dumps({"model": "base", "messages": HELLO, **given}).encode(), "1", SETTINGS)


def completion(**given: Any) -> Call:
    return requests.completion(json.dumps({"model": "base", "prompt": "Hello", **given}).encode(), "1", SETTINGS)


def embedding(**given: Any) -> Call:
    return requests.embedding(json.dumps({"model": "base", "input": "Hello", **given}).encode(), "1", SETTINGS)


def test_the_answer_depends_on_the_prompt_alone() -> None:
    assert chat().choices[0].text == chat(temperature=1.5, user="x").choices[0].text
    assert chat().choices[0].text != chat(messages=[{"role": "user", "content": "Bye"}]).choices[0].text


def test_an_answer_ends_by_itself_within_its_limits() -> None:
    [choice] = chat(max_tokens=500).choices
    assert 5 <= choice.request.output_tokens <= 15
    assert choice.request.finish is FinishReason.STOP


@pytest.mark.parametrize("tokens", [1, 3])
def test_an_answer_is_cut_at_max_tokens(tokens: int) -> None:
    calls = (chat(max_tokens=tokens), chat(max_completion_tokens=tokens, max_tokens=9), completion(max_tokens=tokens))
    for call in calls:
        assert call.choices[0].request.output_tokens == tokens
        assert call.choices[0].request.finish is FinishReason.LENGTH
        assert len(call.choices[0].text) == 4 * tokens


def test_ignore_eos_goes_to_the_end_which_is_sixteen_tokens_or_the_context_when_it_isnt_said() -> None:
    [choice] = completion(max_tokens=400, ignore_eos=True).choices
    assert (choice.request.output_tokens, choice.request.finish) == (400, FinishReason.LENGTH)
    assert completion(ignore_eos=True).choices[0].request.output_tokens == 16
    [choice] = chat(ignore_eos=True).choices
    assert choice.request.prompt.tokens + choice.request.output_tokens == 1000


def test_a_stop_string_ends_the_answer_before_it() -> None:
    whole = completion(max_tokens=400, ignore_eos=True).choices[0].text
    stop = whole[30:36]
    [choice] = completion(max_tokens=400, ignore_eos=True, stop=["not there", stop]).choices
    assert choice.text == whole[: whole.find(stop)]
    assert choice.request.finish is FinishReason.STOP
    assert choice.request.output_tokens * 4 >= len(choice.text) + len(stop)
    assert choice.request.output_tokens * 4 < len(choice.text) + len(stop) + 4


def test_choices_differ_and_the_first_carries_n() -> None:
    call = chat(n=3, max_tokens=8)
    assert len({choice.text for choice in call.choices}) == 3
    assert [choice.index for choice in call.choices] == [0, 1, 2]
    assert [choice.request.choices for choice in call.choices] == [3, 0, 0]
    assert len({choice.request.id for choice in call.choices}) == 3
    assert [choice.request.choices for choice in embedding(input=["one", "two", "three"]).choices] == [1, 0, 0]


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("four", [1]), (["four", "fives"], [1, 2]), ([0, 2, 2**32 - 1], [3]), ([[1], [2, 3]], [1, 2]), ("", [1])],
)
def test_prompts_come_in_four_shapes(prompt: Any, tokens: list[int]) -> None:
    assert [choice.request.prompt.tokens for choice in completion(prompt=prompt).choices] == tokens
    assert [choice.request.prompt.tokens for choice in embedding(input=prompt).choices] == tokens


def test_several_prompts_have_n_choices_each() -> None:
    call = completion(prompt=["one", "two"], n=2, max_tokens=3)
    assert [choice.request.prompt.data for choice in call.choices] == [b"one", b"one", b"two", b"two"]
    assert call.choices[0].text != call.choices[1].text


def test_an_adapter_is_asked_for_by_its_name() -> None:
    assert chat(model="tuned").choices[0].request.adapter == "tuned"
    assert chat(model="other").choices[0].request.adapter == ""


@pytest.mark.parametrize(
    ("make", "given", "status", "param", "message"),
    [
        (chat, {"model": "none"}, 404, "model", "The model `none` does not exist."),
        (completion, {"model": "none"}, 404, "model", "does not exist"),
        (embedding, {"model": "none"}, 404, "model", "does not exist"),
        (chat, {"model": 7}, 400, "model", "Expected `str`, got `int`"),
        (chat, {"messages": []}, 400, "messages", "at least one is expected"),
        (chat, {"messages": "Hello"}, 400, "messages", "Expected `array`, got `str`"),
        (chat, {"messages": [{"content": "x"}]}, 400, "messages[0]", "missing required field `role`"),
        (chat, {"max_tokens": 0}, 400, "max_tokens", "max_tokens: 0 is too small"),
        (chat, {"max_completion_tokens": -1}, 400, "max_completion_tokens", "-1 is too small"),
        (chat, {"n": 0}, 400, "n", "n: 0"),
        (chat, {"n": 1000}, 400, "n", "n: 1000"),
        (chat, {"max_tokens": 1000}, 400, None, "maximum context length is 1000 tokens. However, 1000 output tokens"),
        (completion, {"prompt": []}, 400, "prompt", "an empty list has no prompt"),
        (completion, {"prompt": [[]]}, 400, "prompt", "an empty list has no prompt"),
        (completion, {"prompt": [1, "a"]}, 400, "prompt", "mixed"),
        (completion, {"prompt": [-1]}, 400, "prompt", "prompt: -1 isn't a token id"),
        (completion, {"prompt": [2**32]}, 400, "prompt", "prompt: 4294967296 isn't a token id"),
        (completion, {"prompt": "x" * 4000}, 400, None, "maximum context length"),
        (embedding, {"dimensions": 0}, 400, "dimensions", "dimensions: 0 is out of range; 1 to 256"),
        (embedding, {"encoding_format": "hex"}, 400, "encoding_format", "hex"),
        (embedding, {"input": "x" * 4004}, 400, None, "maximum context length"),
    ],
)
def test_what_is_wrong_is_named(make: Any, given: dict[str, Any], status: int, param: str | None, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        make(**given)
    assert (caught.value.status, caught.value.param) == (status, param)
    assert message in caught.value.message
    assert caught.value.body()["error"]["code"] == status


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"model": "\xff"}', b"{}", b'{"model": "base"}'])
def test_a_body_that_is_not_a_request_is_a_bad_one(body: bytes) -> None:
    for parse in (requests.chat, requests.completion, requests.embedding):
        with pytest.raises(ApiError) as caught:
            parse(body, "1", SETTINGS)
        assert caught.value.status == 400
