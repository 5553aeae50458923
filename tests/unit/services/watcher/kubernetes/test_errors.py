"""The API server's answers as errors."""

import msgspec
import pytest

from services.watcher.kubernetes.errors import (
    ApiError,
    Conflict,
    Expired,
    Forbidden,
    Kind,
    NotFound,
    Unauthorized,
    Unavailable,
    error_of_answer,
    error_of_status,
)
from tests.fake_kubernetes.cluster import status


@pytest.mark.parametrize(
    ("code", "expected", "kind"),
    [
        (400, ApiError, Kind.REFUSED),
        (401, Unauthorized, Kind.UNAUTHORIZED),
        (403, Forbidden, Kind.FORBIDDEN),
        (404, NotFound, Kind.NOT_FOUND),
        (409, Conflict, Kind.CONFLICT),
        (410, Expired, Kind.EXPIRED),
        (422, ApiError, Kind.REFUSED),
        (429, Unavailable, Kind.UNAVAILABLE),
        (500, Unavailable, Kind.UNAVAILABLE),
        (503, Unavailable, Kind.UNAVAILABLE),
        (504, Unavailable, Kind.UNAVAILABLE),
    ],
)
def test_each_status_is_an_error_of_its_kind(code: int, expected: type[ApiError], kind: Kind) -> None:
    body = msgspec.json.encode(status(code, "Because", "of this"))
    error = error_of_answer("list pods", code, "Phrase", "", body)
    assert type(error) is expected
    assert (error.status, error.reason, error.message, error.kind) == (code, "Because", "of this", kind)
    assert error.retry_after is None
    within = error_of_status("list pods", status(code, "Because", "of this"))
    assert (type(within), str(within)) == (expected, str(error))


def test_the_text_says_what_was_attempted_and_what_the_server_said() -> None:
    body = msgspec.json.encode(status(404, "NotFound", "the server could not find the requested resource"))
    assert str(error_of_answer("list pools", 404, "Not Found", "", body)) == (
        "can't list pools: 404 NotFound: the server could not find the requested resource"
    )


def test_the_text_of_403_names_the_verb_even_when_the_server_says_nothing() -> None:
    assert str(error_of_answer("patch pools/status a", 403, "Forbidden", "", b"")) == (
        "not allowed to patch pools/status a (403 Forbidden): a role has to grant it"
    )


def test_a_body_that_is_no_status_is_shown_in_part() -> None:
    error = error_of_answer("list pods", 502, "Bad Gateway", "", b"<html>\n  <p>nginx " + b"x" * 10_000)
    assert str(error).startswith("can't list pods: 502 Bad Gateway: <html> <p>nginx xxx")
    assert len(str(error)) < 400


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[" * 100_000, b'{"kind":"Status","code":"x"}', b"[]"])
def test_any_body_makes_an_error(body: bytes) -> None:
    assert error_of_answer("list pods", 503, "Service Unavailable", "", body).reason == "Service Unavailable"


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [
        ("3", {}, 3.0),
        ("3", {"retryAfterSeconds": 9}, 3.0),
        ("", {"retryAfterSeconds": 9}, 9.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", {}, None),
        ("-1", {}, None),
        ("0", {}, 0.0),
        ("", {"retryAfterSeconds": 0}, None),
    ],
)
def test_retry_after_is_in_the_header_or_in_the_status(
    header: str, details: dict[str, int], seconds: float | None
) -> None:
    body = msgspec.json.encode(status(429, "TooManyRequests", "", **details))
    assert error_of_answer("list pods", 429, "Too Many Requests", header, body).retry_after == seconds
