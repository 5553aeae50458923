"""Options of the connection, checked before anything is tried: where the servers are, and whom to trust."""

import math
import ssl
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from shared.bus.errors import BusOptionError

HIDDEN = "(not shown: it may have a password)"
_ADVICE = "; in a password a comma is written %2C, an @ %40, a colon %3A and a slash %2F"


def checked_servers(servers: Sequence[str]) -> tuple[str, ...]:
    """The servers as URLs; `nats://` is added where there is no scheme. Raises BusOptionError, naming the wrong one."""
    if not servers:
        raise BusOptionError("at least one URL is needed, such as nats://127.0.0.1:4222", "url")
    checked = []
    for server in servers:
        url = server if "://" in server else f"nats://{server}"
        parts, shown = _parts(url), without_secrets(server)
        hidden = shown == HIDDEN
        if hidden or not parts or parts.scheme not in ("nats", "tls") or not parts.hostname or parts.port == 0:
            reason = f"{shown!r} is no URL of a NATS server; nats://host:4222 would be one"
            raise BusOptionError(reason + (_ADVICE if hidden else ""), "url")
        checked.append(url)
    check_users(checked)
    return tuple(checked)


def check_users(servers: Sequence[str]) -> None:
    """Raises BusOptionError if only some URLs have a user: a comma in a password splits a URL of the list."""
    having = sum("@" in server for server in servers)
    if 0 < having < len(servers):
        raise BusOptionError(f"{having} of {len(servers)} URLs have a user; all have one, or none{_ADVICE}", "url")


def _parts(url: str) -> SplitResult | None:
    """The URL's parts; None where it has none, as with a port that is no number."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts


def login_of(server: str) -> tuple[str | None, str | None, str | None]:
    """(user, password, token) that a checked URL has: a user alone is a token."""
    parts = urlsplit(server)
    if not parts.username:
        return None, None, None
    user = unquote(parts.username)
    return (None, None, user) if parts.password is None else (user, unquote(parts.password), None)


def check_login(credentials: Path | None, user: str | None, password: str | None, token: str | None) -> None:
    """Raises BusOptionError for a user without a password or the reverse, and for more than one way to log in."""
    if (user is None) != (password is None):
        raise BusOptionError("one is given without the other", "user", "password")
    given = {"credentials": credentials, "user": user, "token": token}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise BusOptionError("only one of them can be used", *names)


def without_secrets(server: str) -> str:
    """The URL without user, password and token, for messages and logs; `HIDDEN` if they can't be located."""
    scheme, separator, rest = server.rpartition("://")
    parts = _parts(f"nats://{rest}")
    if parts is None or "@" in parts.path + parts.query + parts.fragment:
        return HIDDEN
    return f"{scheme}{separator}{parts.netloc.rpartition('@')[2]}"


def tls_context(servers: Sequence[str], ca: Path | None) -> ssl.SSLContext | None:
    """TLS as asked for, or None when nothing asks for it. Raises BusOptionError for a file that can't be used."""
    if ca is None and not any(server.startswith("tls://") for server in servers):
        return None
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise BusOptionError(f"{str(ca)!r} can't be used: {error}", "ca") from error


def first_expiry(context: ssl.SSLContext) -> float:
    """When the first of its CAs expires, in seconds since the epoch; infinity without one."""
    return min((_seconds(str(certificate["notAfter"])) for certificate in context.get_ca_certs()), default=math.inf)


def _seconds(time: str) -> float:
    try:
        return ssl.cert_time_to_seconds(time)
    except ValueError:  # of the year 0, which only OpenSSL can read
        return 0.0
