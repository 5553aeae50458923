"""How a client reads that it was refused."""

import json
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from services.picker.extproc.events import Limits
from services.picker.extproc.refusals import ErrorFormat, error_format_of
from services.picker.request import Headers, Refusal
from tests.unit.services.picker.extproc.proxy import (
    FULL_DUPLEX,
    Answer,
    Proxy,
    body,
    headers,
    response_body,
    response_headers,
)


def refused(refusal: Refusal, sent: dict[str, str] | None = None) -> Answer:
    proxy = Proxy(lambda _: refusal)
    proxy.say(headers(sent or {}, modes=FULL_DUPLEX))
    (answer,) = proxy.say(body(b"{}", end=True))
    assert proxy.conversation.closed
    return answer


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (412, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_a_client_of_the_messages_api_gets_its_error(status: int, kind: str) -> None:
    """The type goes by the status, as the API has it, and not by OpenAI's word."""
    refusal = Refusal(status=status, message="so it is", kind="openai_word", retry_after=1)
    answer = refused(refusal, {":path": "/v1/messages"})
    assert answer.status == status
    assert answer.set_headers == {"content-type": "application/json", "retry-after": "1"}
    assert json.loads(answer.body) == {"type": "error", "error": {"type": kind, "message": "so it is"}}


@pytest.mark.parametrize(
    ("sent", "form"),
    [
        ({":path": "/v1/messages"}, ErrorFormat.ANTHROPIC),
        ({":path": "/anthropic/v1/messages/count_tokens?beta=true"}, ErrorFormat.ANTHROPIC),
        ({"x-original-path": "/v1/messages/"}, ErrorFormat.ANTHROPIC),
        ({":path": "/v1/messages", "content-type": "application/grpc"}, ErrorFormat.GRPC),
        ({":path": "/v1/chat/completions", "x-original-path": "/v1/messages"}, ErrorFormat.OPENAI),
        ({":path": "/v1/chat/completions?next=/v1/messages"}, ErrorFormat.OPENAI),
        ({}, ErrorFormat.OPENAI),
    ],
)
def test_the_path_says_whose_errors_a_client_reads(sent: dict[str, str], form: ErrorFormat) -> None:
    assert error_format_of(Headers(sent.items())) is form


@pytest.mark.parametrize(
    ("content_type", "start"),
    [("application/json", b'{"type":"error"'), ("application/grpc", b"the request has 4 headers")],
)
def test_too_many_headers_are_refused_in_the_clients_form(content_type: str, start: bytes) -> None:
    proxy = Proxy(limits=Limits(header_count=3))
    sent = [("a", "1"), (":path", "/v1/messages"), ("b", "2"), ("content-type", content_type)]
    (answer,) = proxy.say(headers(sent, end=True))
    assert answer.status == 431
    assert answer.body.startswith(start)


@pytest.mark.parametrize(
    "message",
    [
        headers([("a", "b")] * 100_000),
        headers({"a": "b" * 700_000}),
        headers(hint=["10.0.0.1:8000"] * 50_000),
    ],
    ids=["headers", "a header", "a subset hint"],
)
def test_a_request_with_too_much_beside_its_body_is_refused_unread(message: Any) -> None:
    (answer,) = Proxy().say(message)
    assert (answer.status, answer.body[:56]) == (431, b'{"error":{"message":"headers, subset hint and attributes')


@pytest.mark.parametrize("phase", ["response_headers", "response_body"])
def test_a_response_with_too_much_beside_its_body_is_no_message(phase: str) -> None:
    proxy = Proxy(limits=Limits(header_bytes=100, subset_entries=1))
    proxy.say(headers(end=True))
    assert proxy.say(response_headers())
    assert proxy.say(response_body(b"a" * 100_000)), "a body of as many bytes is read"
    empty = headers({"": ""}, phase=phase) if phase == "response_headers" else body(phase=phase)
    (tag,) = empty.SerializeToString()[:1]
    message = bytes((tag, 0x80, 0x80, 0x04)) + b"\x0a\x00" * 32_768
    assert proxy.conversation.response.relay(message) is None
    with pytest.raises(DecodeError):
        proxy.conversation.receive(message, 0.0)


@pytest.mark.parametrize(
    ("status", "grpc_status"), [(400, 3), (404, 5), (413, 8), (429, 8), (500, 13), (503, 14), (418, 13), (409, 10)]
)
def test_a_grpc_client_gets_a_grpc_status_and_plain_text(status: int, grpc_status: int) -> None:
    """Our content-type would overwrite `application/grpc`, and the body becomes `grpc-message`."""
    answer = refused(Refusal(status=status, message="no room"), {"content-type": "application/grpc+proto"})
    assert answer.grpc_status == grpc_status
    assert answer.body == b"no room"
    assert answer.set_headers == {}


@pytest.mark.parametrize("kind", ["application/grpc", "Application/GRPC+proto", "application/grpc-web"])
def test_a_grpc_client_is_known_by_its_content_type(kind: str) -> None:
    assert refused(Refusal(status=503, message="none"), {"content-type": kind}).grpc_status == 14


def test_a_status_that_proxies_dont_take_becomes_500() -> None:
    answer = refused(Refusal(status=418, message="teapot"))
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (500, 500)
    answer = refused(Refusal(status=418, message="teapot"), {":path": "/v1/messages"})
    assert (answer.status, json.loads(answer.body)["error"]["type"]) == (500, "api_error")
