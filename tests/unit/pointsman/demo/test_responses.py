"""What is a right answer and what isn't, however the bytes come in."""

import json
from typing import Any

import pytest

from pointsman.demo.responses import ResponseCheck
from pointsman.demo.workload import Kind, Request


def request(kind: Kind = "chat", *, stream: bool = False, tokens: int = 3) -> Request:
    return Request(number=1, wait=0, kind=kind, model="m", stream=stream, tokens=tokens, application=0, body=b"")


USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}


def whole(**changes: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": "one two"}, "finish_reason": "length"}
    return json.dumps({"model": "m", "choices": [choice], "usage": USAGE} | changes).encode()


def streamed(*, done: bool = True, **changes: Any) -> bytes:
    def choice(delta: dict[str, str], finish: str | None) -> list[dict[str, Any]]:
        return [{"index": 0, "delta": delta, "finish_reason": finish}]

    events: list[dict[str, Any]] = [
        {"model": "m", "choices": choice({"role": "assistant", "content": ""}, None)},
        {"model": "m", "choices": choice({"content": "one "}, None)},
        {"model": "m", "choices": choice({"content": "two"}, "length")},
        {"model": "m", "choices": [], "usage": USAGE},
    ]
    lines = [f"data: {json.dumps(event | changes)}\n\n" for event in events]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


def verdict(asked: Request, body: bytes) -> str:
    answer = ResponseCheck(asked)
    answer.feed(body)
    return answer.verdict()


def test_a_whole_answer() -> None:
    answer = ResponseCheck(request())
    answer.feed(whole())
    assert answer.verdict() == ""
    assert answer.usage.prompt_tokens == 9
    assert answer.usage.cached_tokens == 4
    choice = {"index": 0, "text": "one two", "finish_reason": "length"}
    assert verdict(request("completion"), whole(choices=[choice])) == ""


def test_a_streamed_answer_cut_into_pieces_anywhere() -> None:
    body = streamed()
    for cut in range(len(body) + 1):
        answer = ResponseCheck(request(stream=True))
        answer.feed(body[:cut])
        answer.feed(body[cut:])
        assert answer.verdict() == ""
        assert answer.usage.cached_tokens == 4


def test_a_streamed_answer_begins_with_its_first_text() -> None:
    answer = ResponseCheck(request(stream=True))
    events = [event + b"\n\n" for event in streamed().split(b"\n\n")]
    answer.feed(events[0])
    assert not answer.begun  # a role is nothing that a user would see
    answer.feed(events[1])
    assert answer.begun


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (whole(model="other"), "model 'other' instead of 'm'"),
        (whole(usage={"prompt_tokens": 9, "completion_tokens": 2}), "2 tokens instead of 3"),
        (whole(usage=None), "0 tokens instead of 3"),
        (whole(choices=[]), "finish_reason None"),
        (whole(choices=[{"message": {"content": "x"}, "finish_reason": "stop"}]), "'stop' instead of 'length'"),
        (whole(choices=[{"message": {"content": ""}, "finish_reason": "length"}]), ""),
        (whole(choices=[{"message": {"content": None}, "finish_reason": "length"}]), "the response has no text"),
        (whole()[:-9], "truncated"),
        (b"", "truncated"),
        (b"<html>", "malformed"),
        (b"\xff\xfe", "malformed"),
    ],
)
def test_a_wrong_whole_answer_is_said_to_be_wrong(body: bytes, says: str) -> None:
    assert says in verdict(request(), body)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (streamed(done=False), "the stream ended without [DONE]"),
        (streamed(model="other"), "model 'other' instead"),
        (streamed(usage={"completion_tokens": 7}), "7 tokens instead of 3"),
        (streamed()[: len(streamed()) // 2], "without [DONE]"),
        (b"", "without [DONE]"),
        (whole(), "without [DONE]"),
        (b": comment\n\n" + streamed(), "not an event"),
        (b"data: {}\n\ndata: [DONE]\n\n", "model"),
    ],
)
def test_a_wrong_streamed_answer_is_said_to_be_wrong(body: bytes, says: str) -> None:
    assert says in verdict(request(stream=True), body)
