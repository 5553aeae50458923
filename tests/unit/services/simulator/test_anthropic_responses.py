import json
from typing import Any

from services.simulator import anthropic_api
from services.simulator.anthropic_api import DONE, MessageEvents, error_body, whole
from services.simulator.api_error import ApiError
from services.simulator.requests import Call
from tests.unit.services.simulator.scenario import end, events, progress, settings

SETTINGS = settings(models=("m",), kv_blocks=250)


def message(**given: Any) -> Call:
    turns = [{"role": "user", "content": "Hello"}]
    body = {"model": "m", "messages": turns, "max_tokens": 3, "ignore_eos": True, **given}
    return anthropic_api.messages(json.dumps(body).encode(), "1", SETTINGS)


def body(call: Call, cached: int = 0) -> Any:
    return json.loads(whole(call, 12, {call.choices[0].request.id: end(call, cached=cached)}))


def test_cached_tokens_are_no_input_tokens() -> None:
    call = message()
    usage = body(call, cached=4)["usage"]
    assert usage["cache_read_input_tokens"] == 4
    assert usage["input_tokens"] == call.choices[0].request.prompt.tokens - 4


def test_a_message_says_why_it_ended() -> None:
    assert body(message(ignore_eos=False, max_tokens=900))["stop_reason"] == "end_turn"
    stop = message().choices[0].text[5:7]
    stopped = body(message(stop_sequences=[stop]))
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", stop)


def test_a_stream_has_the_events_of_the_api_in_their_order() -> None:
    call = message()
    stream = MessageEvents(call, 12)
    sent_events = events(
        stream.of(progress(call, 1, cached=2)) + stream.of(progress(call, 2, cached=2)) + stream.of(end(call, cached=2))
    )
    assert [event["type"] for event in sent_events] == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_delta",
    ]
    start = sent_events[0]["message"]
    assert (start["model"], start["content"], start["stop_reason"], start["stop_sequence"]) == ("m", [], None, None)
    assert start["usage"] == {
        "input_tokens": call.choices[0].request.prompt.tokens - 2,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 2,
        "output_tokens": 0,
    }
    assert "".join(event["delta"]["text"] for event in sent_events[3:]) == call.choices[0].text
    assert stream.complete
    last = stream.end()
    assert last.endswith(DONE)
    stop, delta, over = events(last.removesuffix(DONE))
    assert (stop["type"], delta["type"], over) == ("content_block_stop", "message_delta", {"type": "message_stop"})
    assert delta["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert (delta["usage"]["output_tokens"], delta["usage"]["cache_read_input_tokens"]) == (3, 2)


def test_an_answer_without_text_has_no_block() -> None:
    stop = message().choices[0].text[:4]
    call = message(stop_sequences=[stop])
    assert call.choices[0].text == ""
    assert body(call)["content"] == []
    stream = MessageEvents(call, 12)
    sent_events = events((stream.of(end(call)) + stream.end()).removesuffix(DONE))
    assert [event["type"] for event in sent_events] == ["message_start", "message_delta", "message_stop"]


def test_an_error_has_the_apis_type_for_its_status() -> None:
    def kind(status: int) -> str:
        sent_events = json.loads(error_body(ApiError(status, "SomeError", "so it is")))
        assert (sent_events["type"], sent_events["error"]["message"]) == ("error", "so it is")
        return str(sent_events["error"]["type"])

    assert kind(400) == kind(422) == "invalid_request_error"
    assert kind(404) == "not_found_error"
    assert kind(413) == "request_too_large"
    assert kind(503) == kind(529) == "overloaded_error"
    assert kind(500) == "api_error"
