"""Errors of the Kubernetes API and of the way to it.

The package raises `KubernetesError`s, with their causes chained. The text is for people and names what was attempted;
the `kind` is for decisions and counters. `services.watcher.kubernetes.backoff` decides when to retry.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar

import msgspec


class ErrorKind(StrEnum):
    """What is wrong, in one word."""

    CONFIGURATION = "configuration"
    UNREACHABLE = "unreachable"
    TLS = "tls"
    TIMEOUT = "timeout"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    EXPIRED = "expired"
    REFUSED = "refused"
    """A 4xx without a kind of its own: the request is invalid."""
    UNAVAILABLE = "unavailable"
    BAD_ANSWER = "bad_answer"


class KubernetesError(Exception):
    kind: ClassVar[ErrorKind]
    retry_after: float | None = None
    """Seconds after which the server allows a retry."""


class ConfigurationError(KubernetesError):
    """There is no usable kubeconfig or service account."""

    kind = ErrorKind.CONFIGURATION


class ConnectionFailed(KubernetesError):
    """The API server is unreachable, or the connection broke off."""

    kind = ErrorKind.UNREACHABLE


class TlsFailed(ConnectionFailed):
    """The TLS handshake failed."""

    kind = ErrorKind.TLS


class TimedOut(ConnectionFailed):
    """A time-out has expired."""

    kind = ErrorKind.TIMEOUT


class BadAnswer(KubernetesError):
    """The answer isn't JSON, isn't what was requested, or is larger than the limit."""

    kind = ErrorKind.BAD_ANSWER


class AnswerTooLarge(BadAnswer):
    """The answer is larger than the limit."""


class ApiError(KubernetesError):
    """An HTTP error of the API server, with the `Status` object of its body, if any."""

    kind = ErrorKind.REFUSED

    def __init__(
        self, action: str, status: int, reason: str = "", message: str = "", retry_after: float | None = None
    ) -> None:
        """`action` is what was attempted (`list pods in namespace default`), `reason` Kubernetes' reason (`Expired`,
        `NotFound`) or HTTP's phrase."""
        super().__init__(action, status, reason, message, retry_after)
        self.action = action
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    def __str__(self) -> str:
        detail = f": {self.message}" if self.message else ""
        return f"can't {self.action}: {f'{self.status} {self.reason}'.rstrip()}{detail}"


class Unauthorized(ApiError):
    """401, after the credentials were reloaded."""

    kind = ErrorKind.UNAUTHORIZED


class Forbidden(ApiError):
    """403: a role has to allow the verb."""

    kind = ErrorKind.FORBIDDEN

    def __str__(self) -> str:
        return f"not allowed to {self.action} (403 Forbidden): {self.message or 'a role has to grant it'}"


class NotFound(ApiError):
    """404: there is no such object, or the resource isn't installed."""

    kind = ErrorKind.NOT_FOUND


class Conflict(ApiError):
    """409: another writer owns a field, or the name is taken."""

    kind = ErrorKind.CONFLICT


class Expired(ApiError):
    """410: the resource version, or a list's next page, has expired."""

    kind = ErrorKind.EXPIRED


class Unavailable(ApiError):
    """429 or 5xx."""

    kind = ErrorKind.UNAVAILABLE


_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    429: Unavailable,
}
MAX_TEXT = 300
"""The most characters of a body without a Status object that an error shows."""


class _Details(msgspec.Struct):
    retryAfterSeconds: float = 0


class _Status(msgspec.Struct):
    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


def error_from_response(action: str, status: int, phrase: str, retry_after: str, body: bytes) -> ApiError:
    """The error of an HTTP response. `retry_after` is that header, in seconds, as the API server writes it."""
    try:
        found = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = _Status()
    if found.kind != "Status":
        text = " ".join(body.decode(errors="replace").split())
        found = _Status(message=text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…")
    seconds = retry_after.strip(" \t")
    pause = float(seconds) if seconds.isascii() and seconds.isdecimal() else None
    return _error(action, status, found, phrase, pause)


def error_from_status(action: str, status: Mapping[str, Any]) -> ApiError:
    """The error of an ERROR event, which is a `Status` object."""
    try:
        found = msgspec.convert(status, _Status)
    except msgspec.ValidationError:
        found = _Status(message=f"a Status object is expected in an ERROR event, not {str(status)[:MAX_TEXT]}")
    return _error(action, found.code or 500, found, "", None)


def _error(action: str, status: int, found: _Status, phrase: str, pause: float | None) -> ApiError:
    if pause is None and found.details is not None and found.details.retryAfterSeconds > 0:
        pause = found.details.retryAfterSeconds
    cause = _BY_STATUS.get(status, Unavailable if status >= 500 else ApiError)
    return cause(action, status, found.reason or phrase, found.message, pause)
