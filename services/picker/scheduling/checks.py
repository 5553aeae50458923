"""Checks of what plugins return, and the refusal of a request that can't do without a plugin that failed."""

import re
from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from services.picker.metadata import DESTINATION, REJECTED_PLUGIN_FAILURE
from services.picker.request import RETRY_AFTER, Refusal
from shared.plugin import Plugin, Role

OnFailure: TypeAlias = Literal["skip", "refuse"]
"""What becomes of a request on which a plugin fails or is late: it goes on without it, or is refused with 503."""

HeaderName: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}$")]
"""A parameter that names a header, in any case."""

_HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,256}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]{0,8192}")
_RESERVED = frozenset({DESTINATION, "connection", "content-length", "host", "te", "transfer-encoding", "upgrade"})


def check_headers(headers: Mapping[str, str]) -> None:
    """Raises ValueError for what can't be set as headers."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"{name!r}: {value!r} is no header")
        if name in _RESERVED:
            raise ValueError(f"{name} is the picker's own header, or the proxy's")


def check_metadata(numbers: Mapping[tuple[str, str], float]) -> None:
    """Raises ValueError or TypeError for what can't be in a proxy's metadata."""
    for (namespace, name), number in numbers.items():
        if not namespace or not name or not isfinite(number):
            raise ValueError(f"{namespace!r}, {name!r}: {number!r} is no metadata")


def checked_refusal(refusal: object) -> Refusal:
    """Raises ValueError or TypeError for a refusal that clients can't be sent."""
    if not isinstance(refusal, Refusal):
        raise TypeError(f"{refusal!r} is no Refusal")
    if not 400 <= refusal.status <= 599:
        raise ValueError(f"status {refusal.status}: 400 to 599 are expected")
    if not _HEADER_VALUE.fullmatch(refusal.reason):
        raise ValueError(f"reason: {refusal.reason!r} is no header")
    refusal.message.encode()
    return refusal


def refusal_without(plugin: Plugin, role: Role) -> Refusal:
    """The answer to a request on which a plugin failed that declares `refuse`."""
    return Refusal(
        status=503,
        message=f"the {role.value} {plugin.name!r} failed; no request goes on without it",
        kind="service_unavailable",
        reason=REJECTED_PLUGIN_FAILURE,
        retry_after=RETRY_AFTER,
    )
