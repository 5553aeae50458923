"""The limits of requests and responses are settings, and hold."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import generate_latest

from services.picker.app import PickerService
from services.picker.extproc.events import Limits
from services.picker.request_stream import RequestStream
from services.picker.settings.picker import PickerSettings
from shared.model import Endpoint
from tests.unit.services.picker.extproc.proxy import FULL_DUPLEX, body, headers, response_body
from tests.unit.services.picker.handler import PickerUnderTest
from tests.unit.services.picker.world import pool

SETTINGS: Mapping[str, str] = {
    "max_request_body": "request_body",
    "max_held_bodies": "held_bodies",
    "max_request_headers": "header_bytes",
    "max_header_count": "header_count",
    "max_model_name": "model_name",
    "max_subset_entries": "subset_entries",
    "max_response_object": "response_object",
}


def test_every_limit_of_a_request_and_its_response_is_a_setting() -> None:
    settings: dict[str, Any] = {setting: 7000 + number for number, setting in enumerate(SETTINGS)}
    expected = {limit: settings[setting] for setting, limit in SETTINGS.items()}
    assert set(expected) == set(Limits.__struct_fields__)
    assert PickerService(PickerSettings(**settings)).handler.limits == Limits(**expected)
    assert PickerService(PickerSettings()).handler.limits == Limits(), "the defaults agree"


@pytest.mark.parametrize("fits", [True, False])
def test_an_object_of_a_response_beyond_the_limit_passes_unread(fits: bool) -> None:
    answer = json.dumps({"model": "tuned", "usage": {"prompt_tokens": 5, "completion_tokens": 7}}).encode()
    world = PickerUnderTest(pool("a1"))
    world.handler.limits = replace(world.handler.limits, response_object=len(answer) - (not fits))
    shown = {":method": "POST", ":path": "/v1/chat/completions", "x-gateway-model-name-rewrite": "tuned"}
    asked = body(b'{"model":"m","messages":[{"role":"user","content":"h"}]}', end=True)
    stream, _ = world.begin(headers(shown, modes=FULL_DUPLEX), asked)
    kind = {":status": "200", "content-type": "application/json"}
    answers = world.say(stream, headers(kind, phase="response_headers"), response_body(answer[:-1]))
    answers += world.say(stream, response_body(answer[-1:], end=True))
    came = b"".join(answer.streamed or b"" for answer in answers)
    assert came == (answer.replace(b"tuned", b"m") if fits else answer)


def test_responses_that_are_held_leave_half_of_the_memory_to_requests() -> None:
    """Servers that never end them, and clients that don't read them, say how long they are held."""
    service = PickerService(PickerSettings(max_request_body=1000, max_held_bodies=1000))
    service.view.reset({"pool.endpoint.a": Endpoint(id="default/a", name="a", address="10.0.0.1", port=8000)})
    shown = {":method": "POST", ":path": "/v1/chat/completions"}
    asked = body(b'{"model":"m","messages":[{"role":"user","content":"h"}]}', end=True)
    kind = headers({":status": "200", "content-type": "application/json"}, phase="response_headers")
    streams = [RequestStream(service.handler) for _ in range(4)]
    for stream in streams:
        for message in (headers(shown, modes=FULL_DUPLEX), asked, kind, response_body(b'{"a": "' + b"x" * 193)):
            assert b"".join(stream.receive(message.SerializeToString())) or message.HasField("request_headers")
    assert service.handler.budget.used == 400, "the third and the fourth pass unread"
    for stream in streams:
        stream.end()
    assert service.handler.budget.used == service.handler.response_budget.used == 0


def test_what_is_kept_of_decisions_and_of_models_are_settings() -> None:
    service = PickerService(PickerSettings(decisions_kept=2, metrics_models=1, max_observed_responses=7))
    endpoint = Endpoint(id="default/a", name="a", address="10.0.0.1", port=8000)
    service.view.reset({"pool.endpoint.a": endpoint})
    shown = {":method": "POST", ":path": "/v1/chat/completions"}
    for model in ("first", "second", "third"):
        stream = RequestStream(service.handler)
        asked = b'{"model":"%s","messages":[{"role":"user","content":"h"}]}' % model.encode()
        for message in (headers(shown, modes=FULL_DUPLEX), body(asked, end=True)):
            list(stream.receive(message.SerializeToString()))
        list(stream.receive(headers({":status": "200"}, phase="response_headers").SerializeToString()))
        stream.end()
    assert [decision.request.model for decision in service.ring.newest(10)] == ["third", "second"]
    page = generate_latest(service.registry).decode()
    assert {name for name in ("first", "second", "third", "other") if f'model_name="{name}"' in page} == {
        "first",
        "other",
    }
    assert service.handler.max_observed == 7
