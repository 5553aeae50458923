"""`session-id-producer`: reads the id of a request's session from a header or a cookie."""

from msgspec import Struct

from services.picker.scheduling.checks import HeaderName
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Producer
from shared.attributes import AttributeKey

MAX_COOKIES = 1_000
"""Cookies of a request that are read; browsers send a few hundred at most."""
SESSION_ID = AttributeKey("SessionID", "session-id-producer", str)


class SessionIdParameters(Struct, frozen=True, rename="camel"):
    """Where the id is: one of the two."""

    header_name: HeaderName | None = None
    cookie_name: HeaderName | None = None

    def __post_init__(self) -> None:
        if (self.header_name is None) is (self.cookie_name is None):
            raise ValueError("one of headerName and cookieName is required")


class SessionIdProducer(Producer):
    """The id, where there is one."""

    TYPE = "session-id-producer"
    PRODUCES = (SESSION_ID,)
    Parameters = SessionIdParameters
    parameters: SessionIdParameters

    def produce(self, cycle: Cycle) -> None:
        headers, named = cycle.request.headers, self.parameters
        if named.cookie_name is not None:
            session = _cookie(headers.all("cookie"), named.cookie_name)
        else:
            session = headers.get((named.header_name or "").lower())
        if session:
            cycle.put(SESSION_ID, session)


def _cookie(headers: tuple[str, ...], name: str) -> str:
    """The value of the first cookie of that name (RFC 6265)."""
    left = MAX_COOKIES
    for header in headers:
        pairs = header.split(";", left)[:left]
        left -= len(pairs)
        for pair in pairs:
            key, found, value = pair.partition("=")
            if found and key.strip() == name:
                return value.strip().strip('"')
    return ""
