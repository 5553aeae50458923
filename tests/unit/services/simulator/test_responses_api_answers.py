import json
from typing import Any

from services.simulator.requests import Call
from services.simulator.responses_api import ResponseEvents, ResponsesBody, responses, whole
from tests.unit.services.simulator.scenario import end, events, progress, settings

SETTINGS = settings(models=("m",), kv_blocks=250)


def response(**given: Any) -> tuple[Call, ResponsesBody]:
    body = {"model": "m", "input": "Hello", "max_output_tokens": 3, "ignore_eos": True, **given}
    return responses(json.dumps(body).encode(), "1", SETTINGS)


def test_a_whole_response() -> None:
    tools = [{"type": "function", "name": "switch", "parameters": {}}]
    call, asked = response(instructions="Be brief.", tools=tools, metadata={"a": "b"})
    prompt = call.choices[0].request.prompt.tokens
    assert json.loads(whole(call, 12, {call.choices[0].request.id: end(call, cached=4)}, asked)) == {
        "id": "resp_1",
        "object": "response",
        "created_at": 12,
        "model": "m",
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "error": None,
        "instructions": "Be brief.",
        "max_output_tokens": 3,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "tool_choice": "auto",
        "tools": tools,
        "output": [
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": call.choices[0].text, "annotations": [], "logprobs": []},
                ],
            }
        ],
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + 3,
        },
    }


def test_an_answer_that_ended_by_itself_is_completed() -> None:
    call, asked = response(ignore_eos=False, max_output_tokens=None)
    document = json.loads(whole(call, 12, {call.choices[0].request.id: end(call)}, asked))
    assert (document["status"], document["incomplete_details"]) == ("completed", None)


def test_a_stream_has_the_events_of_the_api_in_their_order() -> None:
    call, asked = response()
    stream = ResponseEvents(call, 12, asked)
    data = (
        stream.of(progress(call, 1, cached=2)) + stream.of(progress(call, 2, cached=2)) + stream.of(end(call, cached=2))
    )
    assert stream.complete
    document = events(data + stream.end())
    assert [event["type"] for event in document] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *(["response.output_text.delta"] * 3),
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in document] == list(range(len(document)))
    begun = document[0]["response"]
    assert (begun["model"], begun["status"], begun["output"], begun["usage"]) == ("m", "in_progress", [], None)
    assert "".join(event["delta"] for event in document[4:7]) == document[7]["text"] == call.choices[0].text
    assert {event["item_id"] for event in document[3:9]} == {document[2]["item"]["id"]} == {"msg_1"}
    assert document[-1]["response"] == json.loads(
        whole(call, 12, {call.choices[0].request.id: end(call, cached=2)}, asked)
    )
    assert document[-1]["response"]["output"] == [document[-2]["item"]]
