"""gRPC health as gateways, charts and probes ask for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from services.picker.transport import few_calls
from services.picker.transport.calls import MAX_QUESTION
from services.picker.transport.ext_proc import SERVICE
from services.picker.transport.grpc_server import GrpcServer, Transport
from services.picker.transport.health import Health

GRPC: Any = grpc.aio
pb: Any = health_pb2
FOLLOWING = ["", "readiness", SERVICE, "inference-extension"]


class Client:
    def __init__(self, channel: Any) -> None:
        self._channel = channel
        serialize, parse = pb.HealthCheckRequest.SerializeToString, pb.HealthCheckResponse.FromString
        self._check = channel.unary_unary("/grpc.health.v1.Health/Check", serialize, parse)
        self._list = channel.unary_unary(
            "/grpc.health.v1.Health/List", pb.HealthListRequest.SerializeToString, pb.HealthListResponse.FromString
        )
        self._watch = channel.unary_stream("/grpc.health.v1.Health/Watch", serialize, parse)

    async def check(self, name: str) -> str:
        answer = await self._check(pb.HealthCheckRequest(service=name), timeout=60)
        return str(pb.HealthCheckResponse.ServingStatus.Name(answer.status))

    async def list(self) -> dict[str, str]:
        answer = await self._list(pb.HealthListRequest(), timeout=60)
        name = pb.HealthCheckResponse.ServingStatus.Name
        return {service: name(item.status) for service, item in answer.statuses.items()}

    def begin(self, path: str) -> Any:
        return self._channel.stream_stream(path)()

    def watch(self, name: str) -> Any:
        return self._watch(pb.HealthCheckRequest(service=name), timeout=60)

    @staticmethod
    async def next(watch: Any) -> str:
        answer = await asyncio.wait_for(watch.read(), 60)
        return str(pb.HealthCheckResponse.ServingStatus.Name(answer.status))


class Ready:
    def __init__(self, now: bool) -> None:
        self.now = now

    def __call__(self) -> bool:
        return self.now


@asynccontextmanager
async def serving(ready: Ready, transport: Transport = "http2") -> AsyncIterator[tuple[Health, Client]]:
    health = Health(ready, interval=0.01)
    server = GrpcServer(health.methods, host="127.0.0.1", port=0, flag="--grpc-health-port", transport=transport)
    await server.start()
    try:
        async with GRPC.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield health, Client(channel)
    finally:
        await server.stop(0)


async def test_every_name_but_liveness_follows_the_readiness_until_the_picker_drains(transport: Transport) -> None:
    ready = Ready(False)
    async with serving(ready, transport) as (server, client):

        async def serve(serving: bool) -> bool:
            expected = dict.fromkeys(FOLLOWING, "SERVING" if serving else "NOT_SERVING") | {"liveness": "SERVING"}
            return {name: await client.check(name) for name in expected} == await client.list() == expected

        assert await serve(False)
        for now in (True, False, True):
            ready.now = now
            server.refresh()
            assert await serve(now)
        server.drain()
        assert await serve(False)
        server.refresh()
        assert await serve(False)


async def test_a_name_that_isnt_known_isnt_found_and_watchers_of_it_hear_that(transport: Transport) -> None:
    async with serving(Ready(True), transport) as (_, client):
        with pytest.raises(GRPC.AioRpcError) as caught:
            await client.check("somebody.else")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch = client.watch("somebody.else")
        assert await client.next(watch) == "SERVICE_UNKNOWN"
        watch.cancel()


QUESTIONS = pytest.mark.parametrize(
    "path",
    [
        *(f"/grpc.health.v1.Health/{method}" for method in ("Check", "List", "Watch")),
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    ],
)


@QUESTIONS
async def test_of_calls_that_ask_nothing_the_oldest_makes_room(
    monkeypatch: pytest.MonkeyPatch, transport: Transport, path: str
) -> None:
    monkeypatch.setattr(few_calls, "MOST", 2)
    async with serving(Ready(True), transport) as (_, client):
        calls = [client.begin(path) for _ in range(3)]
        codes = [asyncio.ensure_future(call.code()) for call in calls]
        (ended,), others = await asyncio.wait(codes, return_when=asyncio.FIRST_COMPLETED)
        assert ended.result() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await client.check("liveness") == "SERVING"
        for call in calls:
            call.cancel()
        await asyncio.wait(others)


@QUESTIONS
async def test_a_long_question_about_the_server_is_refused_unread(path: str) -> None:
    """On the port for requests, a message may be as long as a body."""
    server = GrpcServer(Health(Ready(True)).methods, host="127.0.0.1", port=0, flag="--grpc-port")
    await server.start()
    try:
        async with GRPC.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            call = channel.stream_stream(path)()
            await call.write(b"\x7a\x00" * (MAX_QUESTION // 2) + b"\x7a\x00")
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    finally:
        await server.stop(0)


async def test_watchers_hear_every_change(transport: Transport) -> None:
    ready = Ready(False)
    async with serving(ready, transport) as (server, client):
        watch = client.watch("readiness")
        assert await client.next(watch) == "NOT_SERVING"
        ready.now = True
        server.refresh()
        assert await client.next(watch) == "SERVING"
        server.drain()
        assert await client.next(watch) == "NOT_SERVING"
        watch.cancel()


async def test_the_readiness_is_followed_without_being_told(transport: Transport) -> None:
    ready = Ready(False)
    async with serving(ready, transport) as (server, client):
        following = asyncio.create_task(server.run())
        watch = client.watch("")
        assert await client.next(watch) == "NOT_SERVING"
        ready.now = True
        assert await client.next(watch) == "SERVING"
        following.cancel()
        watch.cancel()
