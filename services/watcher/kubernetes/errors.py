"""What can go wrong between the watcher and the Kubernetes API, as types of our own.

Everything that the package raises on purpose is a `KubernetesError` with its cause chained, and its text is a sentence
for people that names what was attempted. The `kind` is for counters and for whoever decides by it. Whether an error is
worth another try soon, slowly or at once is decided in `services.watcher.kubernetes.watching`, not here.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar

import msgspec


class Kind(StrEnum):
    """What is wrong, in one word."""

    CONFIGURATION = "configuration"
    """There is no usable kubeconfig or service account."""
    UNREACHABLE = "unreachable"
    """No connection, or one that broke off."""
    TLS = "tls"
    TIMEOUT = "timeout"
    """Nothing came for as long as is waited for."""
    UNAUTHORIZED = "unauthorized"
    """401: the API server doesn't know who asks."""
    FORBIDDEN = "forbidden"
    """403: RBAC lacks the verb."""
    NOT_FOUND = "not_found"
    """404: no such object, or the resource isn't installed."""
    CONFLICT = "conflict"
    """409: another writer owns a field, or the name is taken."""
    EXPIRED = "expired"
    """410: the resource version, or a list's next page, is too old."""
    REFUSED = "refused"
    """Any other 4xx: the request itself is wrong."""
    UNAVAILABLE = "unavailable"
    """429 and 5xx: the API server can't now."""
    BAD_ANSWER = "bad_answer"
    """What came isn't what the API promises."""


class KubernetesError(Exception):
    """The base of all of them."""

    kind: ClassVar[Kind]
    retry_after: float | None = None
    """Seconds which the server wants the next try to wait."""


class ConfigurationError(KubernetesError):
    """How to reach the API server, or as whom, can't be made out."""

    kind = Kind.CONFIGURATION


class ConnectionFailed(KubernetesError):
    """The API server can't be reached, or the connection broke off."""

    kind = Kind.UNREACHABLE


class TlsFailed(ConnectionFailed):
    """The TLS handshake failed: an untrusted or expired certificate, another host name, no common version."""

    kind = Kind.TLS


class TimedOut(ConnectionFailed):
    """Nothing came, or not all of it, within a time-out."""

    kind = Kind.TIMEOUT


class BadAnswer(KubernetesError):
    """The answer isn't JSON, isn't what was asked for, or is larger than the limit."""

    kind = Kind.BAD_ANSWER


class ApiError(KubernetesError):
    """The API server's own error: an HTTP status, with the `Status` object of its body as far as there was one."""

    kind = Kind.REFUSED

    def __init__(
        self, action: str, status: int, reason: str = "", message: str = "", retry_after: float | None = None
    ) -> None:
        """`action` is what was attempted (`list pods in namespace default`); `reason` is Kubernetes' machine-readable
        one (`Expired`, `NotFound`) or HTTP's phrase."""
        super().__init__(action, status, reason, message, retry_after)
        self.action = action
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    def __str__(self) -> str:
        said = f": {self.message}" if self.message else ""
        return f"can't {self.action}: {f'{self.status} {self.reason}'.rstrip()}{said}"


class Unauthorized(ApiError):
    """401, after the credentials were loaded anew."""

    kind = Kind.UNAUTHORIZED


class Forbidden(ApiError):
    """403. Says which verb on which resource is to be granted."""

    kind = Kind.FORBIDDEN

    def __str__(self) -> str:
        return f"not allowed to {self.action} (403 Forbidden): {self.message or 'a role has to grant it'}"


class NotFound(ApiError):
    """404."""

    kind = Kind.NOT_FOUND


class Conflict(ApiError):
    """409."""

    kind = Kind.CONFLICT


class Expired(ApiError):
    """410: list again."""

    kind = Kind.EXPIRED


class Unavailable(ApiError):
    """429 or 5xx: overloaded, starting, stopping, or failing behind the API server."""

    kind = Kind.UNAVAILABLE


_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    429: Unavailable,
}
LONGEST_TEXT = 300
"""Characters of a body that isn't a Status object which are worth reading in a log."""


class _Details(msgspec.Struct):
    retryAfterSeconds: float = 0


class _Status(msgspec.Struct):
    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


def error_of_answer(action: str, status: int, phrase: str, retry_after: str, body: bytes) -> ApiError:
    """The error that an HTTP answer says. `retry_after` is that header: seconds, as the API server writes it; its form
    with a date isn't understood."""
    try:
        told = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        told = _Status()
    if told.kind != "Status":
        text = " ".join(body.decode(errors="replace").split())
        told = _Status(message=text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…")
    pause = float(retry_after) if retry_after.strip().isdecimal() else None
    return _error(action, status, told, phrase, pause)


def error_of_status(action: str, status: Mapping[str, Any]) -> ApiError:
    """The error of an ERROR event: a `Status` object within a watch that had begun with 200."""
    try:
        told = msgspec.convert(status, _Status)
    except msgspec.ValidationError:
        told = _Status(message=f"a Status object is expected in an ERROR event, not {str(status)[:LONGEST_TEXT]}")
    return _error(action, told.code or 500, told, "", None)


def _error(action: str, status: int, told: _Status, phrase: str, pause: float | None) -> ApiError:
    if pause is None and told.details is not None and told.details.retryAfterSeconds > 0:
        pause = told.details.retryAfterSeconds
    cause = _BY_STATUS.get(status, Unavailable if status >= 500 else ApiError)
    return cause(action, status, told.reason or phrase, told.message, pause)
