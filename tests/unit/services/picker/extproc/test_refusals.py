"""How a client reads that it was refused."""

import json

import pytest

from services.picker.requests.request import Refusal
from tests.unit.services.picker.extproc.proxy import FULL_DUPLEX, LEAN, Answer, Proxy, body, headers


def refused(refusal: Refusal, sent: dict[str, str] | None = None) -> Answer:
    proxy = Proxy(lambda _: refusal)
    proxy.say(headers(sent or {}, modes=FULL_DUPLEX))
    (answer,) = proxy.say(body(b"{}", end=True))
    assert proxy.conversation.closed
    return answer


def test_the_body_is_an_openai_error_with_its_content_type() -> None:
    answer = refused(Refusal(status=400, message='messages: "x" is no list'))
    assert answer.status == 400
    assert answer.set_headers == {"content-type": "application/json"}
    assert json.loads(answer.body) == {
        "error": {
            "message": 'messages: "x" is no list',
            "type": "invalid_request_error",
            "param": None,
            "code": 400,
        }
    }
    assert answer.grpc_status is None


def test_a_shed_request_is_told_why_and_when_to_come_again() -> None:
    answer = refused(
        Refusal(status=429, message="full", kind="rate_limit_error", reason="rejected-saturated", retry_after=2)
    )
    assert answer.set_headers == {
        "content-type": "application/json",
        "retry-after": "2",
        "x-llm-d-request-dropped-reason": "rejected-saturated",
    }


@pytest.mark.parametrize(
    ("status", "grpc_status"), [(400, 3), (404, 5), (413, 8), (429, 8), (500, 13), (503, 14), (418, 13), (409, 10)]
)
def test_a_grpc_client_gets_a_grpc_status_and_plain_text(status: int, grpc_status: int) -> None:
    """Our content-type would overwrite `application/grpc`, and the body becomes `grpc-message`."""
    answer = refused(Refusal(status=status, message="no room"), {"content-type": "application/grpc+proto"})
    assert answer.grpc_status == grpc_status
    assert answer.body == b"no room"
    assert answer.set_headers == {}


def test_a_status_that_proxies_dont_take_becomes_500() -> None:
    assert refused(Refusal(status=418, message="teapot")).status == 500


def test_a_refusal_can_come_at_the_headers() -> None:
    proxy = Proxy(lambda _: Refusal(status=503, message="no endpoint"))
    assert [str(one) for one in proxy.say(headers(end=True, modes=LEAN))] == ["immediate_response 503"]
