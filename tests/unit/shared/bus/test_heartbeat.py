"""Heartbeats go on whatever happens to one of them."""

import asyncio

import pytest
from structlog.testing import capture_logs

from shared.bus.errors import BusError
from shared.bus.heartbeat import beat


@pytest.mark.parametrize("error", [BusError("no"), RuntimeError("the handler is closed")])
async def test_a_beat_that_fails_is_logged_and_the_next_follow(error: Exception) -> None:
    sent, enough = 0, asyncio.Event()

    async def send() -> None:
        nonlocal sent
        sent += 1
        if sent == 1:
            raise error
        enough.set()

    clock = asyncio.get_running_loop().time
    with capture_logs() as logs:
        beats = asyncio.create_task(beat(send, 0.001, clock, "beat.failed", tier="picker"))
        await asyncio.wait({beats, waiting := asyncio.create_task(enough.wait())}, return_when="FIRST_COMPLETED")
        assert not beats.done()
        beats.cancel()
        await waiting
    assert [(line["event"], line["tier"]) for line in logs] == [("beat.failed", "picker")]
