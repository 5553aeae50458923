"""Limits of a picker's process that docs/security.md lists: a setting that is changed takes effect."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from services.picker.app import PickerService
from services.picker.request_stream import RequestStream
from services.picker.transport.ext_proc import SERVICE
from tests.in_process import picker, serving
from tests.nats import NatsServer
from tests.protocol.collector.harness import Owner, endpoint
from tests.unit.services.picker.extproc.proxy import LEAN, body, headers
from tests.waiting import eventually

CHAT = {":method": "POST", ":path": "/v1/chat/completions"}
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'


async def streams(service: PickerService, _: Owner) -> None:
    channel: Any = grpc.aio.insecure_channel(f"127.0.0.1:{service.grpc.port}")
    async with channel:
        open_stream = channel.stream_stream(f"/{SERVICE}/Process")
        first = open_stream()
        await first.write(headers({":method": "GET", ":path": "/"}, modes=LEAN).SerializeToString())
        await first.read()
        second = open_stream()
        assert await second.code() is grpc.StatusCode.UNAVAILABLE
        assert "1 streams are open" in await second.details()


async def layouts(service: PickerService, owner: Owner) -> None:
    """Three decisions, each on other endpoints."""
    for count in (1, 2, 3):
        await owner.publish([endpoint(f"e{number}", 8000 + number) for number in range(count)])
        await eventually(lambda count=count: len(service.view.layout) == count)  # type: ignore[misc]
        stream = RequestStream(service.handler)
        for message in (headers(CHAT, modes=LEAN), body(BODY, end=True)):
            stream.receive(message.SerializeToString())
        stream.end()
    assert (service.ring.total, len(service.ring)) == (3, 1)


async def unfinished_admin_request(service: PickerService, _: Owner) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.admin_port)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: ")
    assert await reader.read() == b""
    writer.close()


async def admin_connections(service: PickerService, _: Owner) -> None:
    first, second = [await asyncio.open_connection("127.0.0.1", service.admin_port) for _ in range(2)]
    assert await first[0].read() == b""
    first[1].close()
    second[1].close()


LIMITS: dict[str, tuple[Any, Callable[[PickerService, Owner], Awaitable[None]]]] = {
    "max_streams": (1, streams),
    "decision_layouts_kept": (1, layouts),
    "admin_timeout": (0.1, unfinished_admin_request),
    "admin_connections": (1, admin_connections),
}


@pytest.mark.parametrize("setting", LIMITS)
async def test_a_changed_limit_takes_effect(setting: str, nats: NatsServer, owner: Owner) -> None:
    limit, exceed = LIMITS[setting]
    service = picker(nats.url, **{setting: limit})
    async with serving(service):
        await owner.publish([endpoint("e0", 8000)])
        await eventually(lambda: len(service.view.layout) == 1, "the endpoint")
        await exceed(service, owner)
