"""Options of the connection, checked before anything is tried: where the servers are, and whom to trust."""

import ssl
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from shared.bus.errors import BusOptionError


def checked_servers(servers: Sequence[str]) -> tuple[str, ...]:
    """The servers as URLs; `nats://` is added where there is no scheme. Raises BusOptionError, naming the wrong one."""
    if not servers:
        raise BusOptionError("at least one URL is needed, such as nats://127.0.0.1:4222", "servers")
    checked = []
    for server in servers:
        url = server if "://" in server else f"nats://{server}"
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("nats", "tls") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise BusOptionError(
                f"{without_secrets(server)!r} is no URL of a NATS server; nats://host:4222 would be one", "servers"
            )
        checked.append(url)
    return tuple(checked)


def check_login(credentials: Path | None, user: str | None, password: str | None, token: str | None) -> None:
    """Raises BusOptionError for a user without a password or the reverse, and for more than one way to log in."""
    if (user is None) != (password is None):
        raise BusOptionError("one is given without the other", "user", "password")
    given = {"credentials": credentials, "user": user, "token": token}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise BusOptionError("only one of them can be used", *names)


def without_secrets(server: str) -> str:
    """The URL without user, password and token, for messages and logs."""
    head, at, tail = server.rpartition("@")
    return f"{head.partition('://')[0]}://{tail}" if at and "://" in head else tail


def tls_context(servers: Sequence[str], ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """TLS as asked for, or None when nothing asks for it. Raises BusOptionError for a file that can't be used."""
    if (cert is None) != (key is None):
        raise BusOptionError("one is given without the other", "tls_cert", "tls_key")
    if ca is None and cert is None and not any(server.startswith("tls://") for server in servers):
        return None
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise BusOptionError(f"{str(ca)!r} can't be used: {error}", "tls_ca") from error
    if cert is not None:
        try:
            context.load_cert_chain(str(cert), None if key is None else str(key))
        except (OSError, ssl.SSLError) as error:
            raise BusOptionError(
                f"{str(cert)!r} with {str(key)!r} can't be used: {error}", "tls_cert", "tls_key"
            ) from error
    return context
