"""Validates the connection's settings: options of the bus with the prefix `nats_`. `make_bus` reads the files."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from shared.bus.errors import BusOptionError
from shared.bus.options import check_login, check_users, checked_servers
from shared.bus.subjects import Subjects
from shared.limits import MIN_PENDING_BYTES
from shared.quantities import format_size

_LOGIN = ("nats_credentials", "nats_user", "nats_password", "nats_token")


def named(error: BusOptionError) -> tuple[str, ...]:
    """The names of the settings that an error is about."""
    return tuple(f"nats_{option}" for option in error.options)


def login(values: Mapping[str, str]) -> dict[str, Any]:
    """The bus's options of that kind; an empty setting is one that isn't given."""
    credentials, user, password, token = (values[name] or None for name in _LOGIN)
    path = Path(credentials) if credentials else None
    return {"credentials": path, "user": user, "password": password, "token": token}


def problems(sound: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """(names of settings, what is wrong with them), for those settings whose values are given here."""
    servers = sound.get("nats_url", ())
    checks: list[Callable[[], object]] = [partial(checked_servers, [server]) for server in servers]
    checks.append(partial(check_users, servers))
    pending = sound.get("max_pending_bytes", MIN_PENDING_BYTES)
    if pending < MIN_PENDING_BYTES:
        least = format_size(MIN_PENDING_BYTES)
        yield (
            ("max_pending_bytes",),
            f"{format_size(pending)} is below {least}, so that large messages would be dropped",
        )
    if "nats_prefix" in sound:
        checks.append(partial(Subjects, sound["nats_prefix"]))
    if all(name in sound for name in _LOGIN):
        checks.append(partial(check_login, **login(sound)))
    for check in checks:
        try:
            check()
        except BusOptionError as error:
            yield named(error), error.reason
