"""The API server's answers as errors."""

import msgspec
import pytest

from services.watcher.kubernetes.errors import (
    ApiError,
    Conflict,
    ErrorKind,
    Expired,
    Forbidden,
    NotFound,
    Unauthorized,
    Unavailable,
    error_from_response,
    error_from_status,
)
from tests.fake_kubernetes.cluster import status


@pytest.mark.parametrize(
    ("code", "expected", "kind"),
    [
        (400, ApiError, ErrorKind.REFUSED),
        (401, Unauthorized, ErrorKind.UNAUTHORIZED),
        (403, Forbidden, ErrorKind.FORBIDDEN),
        (404, NotFound, ErrorKind.NOT_FOUND),
        (409, Conflict, ErrorKind.CONFLICT),
        (410, Expired, ErrorKind.EXPIRED),
        (422, ApiError, ErrorKind.REFUSED),
        (429, Unavailable, ErrorKind.UNAVAILABLE),
        (500, Unavailable, ErrorKind.UNAVAILABLE),
        (503, Unavailable, ErrorKind.UNAVAILABLE),
        (504, Unavailable, ErrorKind.UNAVAILABLE),
    ],
)
def test_each_status_is_an_error_of_its_kind(code: int, expected: type[ApiError], kind: ErrorKind) -> None:
    body = msgspec.json.encode(status(code, "Because", "of this"))
    error = error_from_response("list pods", code, "Phrase", "", body)
    assert type(error) is expected
    assert (error.status, error.reason, error.message, error.kind) == (code, "Because", "of this", kind)
    assert error.retry_after is None
    within = error_from_status("list pods", status(code, "Because", "of this"))
    assert (type(within), str(within)) == (expected, str(error))


@pytest.mark.parametrize(
    ("code", "body", "text"),
    [
        (
            404,
            msgspec.json.encode(status(404, "NotFound", "no such resource")),
            "can't do it: 404 NotFound: no such resource",
        ),
        (403, b"", "not allowed to do it (403 Forbidden): a role has to grant it"),
        (502, b"<html>\n  <p>nginx " + b"x" * 10_000, "can't do it: 502 Bad Gateway: <html> <p>nginx xxx"),
        *((503, body, "") for body in (b"", b"\xff\xfe", b"[" * 100_000, b'{"kind":"Status","code":"x"}', b"[]")),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_text_says_what_was_attempted_and_what_the_server_said(code: int, body: bytes, text: str) -> None:
    phrase = {403: "Forbidden", 404: "Not Found", 502: "Bad Gateway"}.get(code, "Service Unavailable")
    error = error_from_response("do it", code, phrase, "", body)
    assert str(error).startswith(text or "can't do it: 503 Service Unavailable")
    assert len(str(error)) < 400


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
    assert error_from_response("list pods", 429, "Too Many Requests", header, body).retry_after == seconds
