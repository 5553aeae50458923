import base64
import json
import struct
from typing import Any

import pytest

from services.simulator import openai_api, requests
from services.simulator.openai_api import CompletionEvents
from services.simulator.requests import Call
from services.simulator.sequence import RequestOutput
from tests.unit.services.simulator.scenario import end, progress, settings

SETTINGS = settings(models=("m",), kv_blocks=250)


def completion(**given: Any) -> Call:
    body = {"model": "m", "prompt": "Hello you", "max_tokens": 6, "ignore_eos": True, **given}
    return requests.completion(json.dumps(body).encode(), "1", SETTINGS)


def chat(**given: Any) -> Call:
    messages = [{"role": "user", "content": "Hello"}]
    body = {"model": "m", "messages": messages, "max_tokens": 6, "ignore_eos": True, **given}
    return requests.chat(json.dumps(body).encode(), "1", SETTINGS)


def ends(call: Call, *cached: int) -> dict[str, RequestOutput]:
    all = [end(call, index, cached=cached[index] if cached else 0) for index in range(len(call.choices))]
    return {each.id: each for each in all}


def events(data: bytes) -> list[Any]:
    """The JSON of each event; the end mark as text."""
    blocks = data.decode().split("\n\n")
    assert blocks.pop() == ""
    texts = [block.removeprefix("data: ") for block in blocks]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


def test_usage_counts_prompt_answer_and_cache() -> None:
    call = completion()
    assert openai_api.usage(call, ends(call, 2).values()) == {
        "prompt_tokens": 3,
        "completion_tokens": 6,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_usage_counts_the_prompt_of_several_choices_once() -> None:
    call = completion(n=3)
    usage = openai_api.usage(call, ends(call, 0, 2, 2).values())
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 18)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    call = completion(prompt=["same", "same"])
    assert openai_api.usage(call, ends(call, 0, 0).values())["prompt_tokens"] == 2


def test_a_whole_chat_has_a_message_and_a_whole_completion_text() -> None:
    call = chat()
    choice = {"index": 0, "message": {"role": "assistant", "content": call.choices[0].text}, "finish_reason": "length"}
    body = json.loads(openai_api.whole(call, 12, ends(call)))
    assert (body["object"], body["created"], body["model"]) == ("chat.completion", 12, "m")
    assert [each.items() >= choice.items() for each in body["choices"]] == [True]
    call = completion(n=2)
    body = json.loads(openai_api.whole(call, 12, ends(call)))
    assert body["object"] == "text_completion"
    assert [choice["text"] for choice in body["choices"]] == [choice.text for choice in call.choices]


def test_a_streamed_chat_begins_with_its_role_and_adds_up_to_the_text() -> None:
    call = chat()
    stream = CompletionEvents(call, 12)
    data = stream.of(progress(call, 1)) + stream.of(progress(call, 4))
    completed = [stream.complete]
    data += stream.of(end(call))
    assert [*completed, stream.complete] == [False, True]
    parsed = events(data + stream.end())
    assert parsed.pop() == "[DONE]"
    deltas = [event["choices"][0]["delta"] for event in parsed]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [len(delta["content"]) for delta in deltas[1:]] == [4, 12, 8]
    assert "".join(delta["content"] for delta in deltas) == call.choices[0].text
    assert [event["choices"][0]["finish_reason"] for event in parsed] == [None, None, None, "length"]
    assert {event["object"] for event in parsed} == {"chat.completion.chunk"}


def test_usage_is_the_last_event_when_it_is_asked_for() -> None:
    call = completion(stream=True, stream_options={"include_usage": True})
    stream = CompletionEvents(call, 12)
    parsed = events(stream.of(end(call, cached=1)) + stream.end())
    assert parsed[-1] == "[DONE]"
    assert parsed[-2]["choices"] == []
    assert parsed[-2]["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert "usage" not in parsed[0]


def test_the_stop_string_is_not_shown() -> None:
    text = completion().choices[0].text
    call = completion(stop=text[6:9])
    stream = CompletionEvents(call, 12)
    tokens = range(1, call.choices[0].request.output_tokens)
    parts = [stream.of(progress(call, count)) for count in tokens]
    parts.append(stream.of(end(call)))
    parsed = events(b"".join(parts))
    assert "".join(event["choices"][0]["text"] for event in parsed) == text[: text.find(text[6:9])]
    assert parsed[-1]["choices"][0]["finish_reason"] == "stop"


def test_choices_of_a_stream_end_one_by_one() -> None:
    call = completion(n=2)
    stream = CompletionEvents(call, 12)
    parsed = events(stream.of(end(call, 1)))
    assert parsed[0]["choices"][0]["index"] == 1
    completed = [stream.complete]
    stream.of(end(call, 0))
    assert [*completed, stream.complete] == [False, True]


@pytest.mark.parametrize("packed", [False, True])
def test_embeddings_come_as_numbers_or_packed(packed: bool) -> None:
    body = {"model": "m", "input": ["one", "two"], "dimensions": 4, "encoding_format": "base64" if packed else "float"}
    call = requests.embedding(json.dumps(body).encode(), "1", SETTINGS)
    answer = json.loads(openai_api.embeddings(call, 12, ends(call), 0))
    vectors = [item["embedding"] for item in answer["data"]]
    if packed:
        vectors = [list(struct.unpack("<4f", base64.b64decode(vector))) for vector in vectors]
    assert [len(each_vector) for each_vector in vectors] == [4, 4]
    assert [(item["object"], item["index"]) for item in answer["data"]] == [("embedding", 0), ("embedding", 1)]
    assert vectors[0] != vectors[1]
    assert answer["usage"]["total_tokens"] == 2
