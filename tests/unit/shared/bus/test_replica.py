"""What a reader logs while it can't take a snapshot. With real servers: tests/protocol/bus."""

import asyncio
from collections.abc import Callable

import pytest
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from shared.bus.connection import Bus
from shared.bus.errors import BusError, NoResponders, RequestTimeout
from shared.bus.replica import Replica
from shared.bus.subjects import Subjects


class Refusing(Bus):
    """Is connected as soon as somebody asks, and fails every request with the next error; the last one stays."""

    def __init__(self, *errors: BusError) -> None:
        super().__init__("nats://127.0.0.1:4222", name="test")
        self._errors = list(errors)
        self.exhausted = asyncio.Event()

    def on_connect(self, callback: Callable[[], None]) -> Callable[[], None]:
        callback()
        return lambda: None

    async def request_many(self, *_: object, **__: object) -> Msg:
        if len(self._errors) == 1:
            self.exhausted.set()
            raise self._errors[0]
        raise self._errors.pop(0)


@pytest.mark.parametrize(
    ("error", "event", "level", "reason"),
    [
        (NoResponders("nobody"), "replica.waiting", "info", "bucket 'endpoints' is missing"),
        (RequestTimeout("no answer in 1 s"), "replica.snapshot.failed", "warning", "no answer in 1 s"),
    ],
)
async def test_a_missing_bucket_is_waited_for_and_other_failures_are_warned_of_once(
    error: BusError, event: str, level: str, reason: str
) -> None:
    """A reader that comes before the owner, as in a new installation, finds no bucket."""
    bus = Refusing(error, error, error)
    with capture_logs() as logs:
        replica = Replica(bus, Subjects(), "default_p", lambda event: None, retry=0.001)
        await replica.start()
        async with asyncio.timeout(60):
            await bus.exhausted.wait()
        await replica.close()
    assert [(line["event"], line["log_level"], line["reason"]) for line in logs] == [(event, level, reason)]
    assert replica.readiness() is not None
