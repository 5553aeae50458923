"""The connection to NATS that a process's settings describe."""

from pathlib import Path

from shared.bus.connection import Bus
from shared.bus.errors import BusOptionError
from shared.bus.subjects import Subjects, pool_token
from shared.config.problems import Invalid, Problem
from shared.service.settings import CommonSettings


def make_bus(settings: CommonSettings, tier: str, process_id: str) -> tuple[Bus, Subjects, str]:
    """(the bus, not yet started; the names of the installation; the pool's token).

    Raises `Invalid` for settings that can't be used together.
    """
    try:
        bus = Bus(
            settings.nats_url,
            name=f"pointsman-{tier}-{process_id}",
            credentials=Path(settings.nats_credentials) if settings.nats_credentials else None,
            user=settings.nats_user or None,
            password=settings.nats_password or None,
            token=settings.nats_token or None,
            tls_ca=Path(settings.nats_ca) if settings.nats_ca else None,
        )
        return bus, Subjects(settings.nats_prefix), pool_token(settings.pool_namespace, settings.pool_name)
    except BusOptionError as error:
        raise Invalid([Problem("--nats-…", str(error))]) from error
