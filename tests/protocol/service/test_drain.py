"""How a picker's drain ends when a stream doesn't."""

import asyncio
from typing import Any

import grpc.aio
import pytest
from structlog.testing import capture_logs

from services.picker import app
from services.picker.transport.ext_proc import SERVICE
from tests.in_process import picker, serving
from tests.nats import NatsServer
from tests.protocol.collector.harness import Owner, endpoint
from tests.waiting import TIMEOUT, eventually

ENDING = 20.0


async def test_a_stream_that_does_not_end_is_cut_off_before_the_drain_is(
    nats: NatsServer, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream's own end, which releases what it holds, is part of the drain; the time-out isn't reached."""
    monkeypatch.setattr(app, "ENDING", ENDING)
    graces: list[float] = []
    await owner.publish([endpoint("a", 8000)])
    with capture_logs() as lines:
        async with (
            serving(picker(nats.url, drain_delay=0.2, drain_timeout=TIMEOUT)) as service,
            grpc.aio.insecure_channel(f"127.0.0.1:{service.grpc.port}") as channel,
        ):
            await eventually(lambda: service.readiness.ready, service.readiness.reasons)
            calls: Any = channel  # the stubs want more than the library does
            stream = calls.stream_stream(f"/{SERVICE}/Process")()
            await eventually(lambda: service.ext_proc.open == 1)
            cut_off = service.grpc.stop

            async def at_once(grace: float) -> None:
                graces.append(grace)
                await cut_off(min(grace, 0.2))

            monkeypatch.setattr(service.grpc, "stop", at_once)
            service.stop()
            async with asyncio.timeout(TIMEOUT):
                code = await stream.code()
            assert code is not grpc.StatusCode.OK
    assert 0 < graces[0] <= TIMEOUT - ENDING
    assert service.handler.open == 0
    assert not [line for line in lines if line["event"] == "service.timeout"]
