"""`pointsman picker --workers 2` as processes: who gets a connection, what the one admin port shows, and what remains
when something ends."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hpack import Encoder

from services.picker.transport import certificate
from services.picker.transport.ext_proc import METHOD
from tests.nats import NatsServer
from tests.protocol.collector.harness import Owner, endpoint
from tests.protocol.picker.process import PORTS, Picker
from tests.unit.services.picker.extproc.proxy import LEAN, body, headers
from tests.unit.services.picker.transport.http2 import peer
from tests.waiting import TIMEOUT, eventually

WORKERS = ("p-0", "p-1")
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
health: Any = health_pb2
health_grpc: Any = health_pb2_grpc


class Workers(Picker):
    """Two workers and their supervisor."""

    async def workers(self) -> dict[str, Any]:
        """By id."""
        found: dict[str, Any] = (await self.state())["workers"]
        return found

    async def connections(self) -> list[int]:
        """How many each worker has."""
        return [worker["connections"] for worker in (await self.workers()).values()]

    async def decides(self, wanted: int) -> None:
        """Wait until the page of all workers counts so many decisions: who doesn't answer in time isn't on it."""
        found: list[float] = []

        async def so() -> bool:
            found[:] = [await self.metric("pointsman_picker_decisions_total")]
            return found == [wanted]

        await eventually(so, lambda: f"{wanted} decisions, not {found}")

    async def shares(self, wanted: list[int]) -> None:
        """Wait until the workers have so many connections."""
        found: list[int] = []

        async def so() -> bool:
            found[:] = await self.connections()
            return found == wanted

        await eventually(so, lambda: f"the workers have {found}, not {wanted} connections")


@asynccontextmanager
async def picker(nats: NatsServer, owner: Owner, folder: Path, *flags: str) -> AsyncIterator[Workers]:
    """One with an endpoint, ready."""
    await owner.publish([endpoint("a", 8000)])
    quick = ("--drain-delay=200ms", f"--drain-timeout={TIMEOUT:.0f}s", "--secure-serving=false", *flags)
    process = Workers(nats.url, "p", folder / "log", *PORTS, "--workers=2", *quick)
    pids: list[int] = []
    try:
        await process.ready()
        pids += [worker["pid"] for worker in (await process.workers()).values()]
        yield process
    finally:
        process.kill()
        for pid in alive(pids):
            os.kill(pid, signal.SIGCONT)  # a worker that a failed test has stopped would not end


class Proxy:
    """Proxies with a connection each."""

    def __init__(self, port: int, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._address = f"127.0.0.1:{port}"
        self._credentials = credentials
        self._open = AsyncExitStack()

    async def connect(self) -> Any:
        """A further one."""
        options = (("grpc.use_local_subchannel_pool", 1),)
        channel = (
            grpc.aio.insecure_channel(self._address, options)
            if self._credentials is None
            else grpc.aio.secure_channel(self._address, self._credentials, options)
        )
        await self._open.enter_async_context(channel)
        await channel.channel_ready()
        return channel

    async def __aenter__(self) -> "Proxy":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()


async def begin(channel: Any, request_id: str) -> Any:
    """A stream whose request is routed."""
    stream = channel.stream_stream(METHOD)()
    shown = {":method": "POST", ":path": "/v1/chat/completions", "x-request-id": request_id}
    for message in (headers(shown, modes=LEAN), body(BODY, end=True)):
        await stream.write(message.SerializeToString())
        assert await stream.read() is not grpc.aio.EOF  # type: ignore[attr-defined]  # grpc-stubs is older
    return stream


async def end(stream: Any) -> None:
    await stream.done_writing()
    assert await stream.code() is grpc.StatusCode.OK


def alive(pids: Sequence[int]) -> list[int]:
    """The processes that run; a dead one that nobody has waited for doesn't."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2][0]
        except FileNotFoundError:
            continue
        found += [pid] if state != "Z" else []
    return found


async def answers_a_path_that_is_no_text(port: int) -> None:
    """As the picker's own server does; grpcio's ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    path = (b":path", b"/\xff")
    block = Encoder().encode([path if name == ":path" else (name, value) for name, value in peer.REQUEST])
    writer.write(peer.PREFACE + peer.settings() + peer.frame(peer.HEADERS, peer.END_HEADERS, 1, block))
    kind = -1
    while kind not in (peer.HEADERS, peer.RST_STREAM, peer.GOAWAY):
        head = await reader.readexactly(9)
        kind = head[3]
        await reader.readexactly(int.from_bytes(head[:3], "big"))
    writer.close()


@pytest.mark.parametrize("transport", ["http2", "http2 with TLS", "grpcio"])
async def test_workers_share_connections_and_one_port_answers_for_all(
    transport: str, nats: NatsServer, owner: Owner, tmp_path: Path
) -> None:
    flags, credentials = [f"--transport={transport.partition(' ')[0]}"], None
    if "TLS" in transport:
        made = certificate.self_signed(["127.0.0.1"], datetime.now(UTC))
        (tmp_path / "tls.crt").write_text(made.chain)
        (tmp_path / "tls.key").write_text(made.key)
        flags += ["--secure-serving=true", f"--cert-path={tmp_path}"]
        credentials = grpc.ssl_channel_credentials(made.chain.encode())
    async with picker(nats, owner, tmp_path, *flags) as process:
        await answers_a_path_that_is_no_text((await process.state())["grpc_health_port"])
        async with Proxy((await process.state())["grpc_port"], credentials) as proxy:
            for number in range(8):
                await end(await begin(await proxy.connect(), f"r{number}"))
            if transport != "grpcio":  # whose connections the kernel distributes
                await process.shares([4, 4])

        async def told() -> bool:
            """Of all workers, as of one that doesn't answer within a second nothing is told."""
            newest = (await process.get("/debug/decisions?limit=3")).json()
            ids = [decision["request_id"] for decision in newest["decisions"]]
            assert (newest["total"], ids) == (8, ["r7", "r6", "r5"])
            for number in range(8):
                answer = (await process.get(f"/debug/decisions/r{number}")).json()
                assert [decision["request_id"] for decision in answer.get("decisions", [])] == [f"r{number}"]
            assert await process.metric("pointsman_picker_decisions_total", status="200") == 8
            assert await process.metric("pointsman_picker_picks_total") == 8
            assert await process.metric("pointsman_picker_endpoints") == 1
            answers = {id: worker["picker"] or {} for id, worker in (await process.workers()).items()}
            assert {id: state.get("peers") for id, state in answers.items()} == {"p-0": ["p-1"], "p-1": ["p-0"]}
            return True

        await eventually(told)
        assert (await process.get("/debug/decisions/none")).status_code == 404
        assert await process.metric("pointsman_bus_duplicate_id_messages_total") == 0
        await process.shares([0, 0])


async def test_a_killed_worker_comes_back_and_the_other_goes_on(nats: NatsServer, owner: Owner, tmp_path: Path) -> None:
    async with picker(nats, owner, tmp_path) as process, Proxy((await process.state())["grpc_port"]) as proxy:
        streams = [await begin(await proxy.connect(), f"r{number}") for number in range(2)]
        await process.shares([1, 1])
        await process.decides(2)
        killed, others = (await process.workers())["p-0"]["pid"], (await process.workers())["p-1"]["pid"]
        os.kill(killed, signal.SIGKILL)
        codes = [asyncio.ensure_future(stream.code()) for stream in streams]
        (lost,), _ = await asyncio.wait(codes, return_when=asyncio.FIRST_COMPLETED, timeout=TIMEOUT)
        assert lost.result() is grpc.StatusCode.UNAVAILABLE
        await eventually(lambda: process.metric("pointsman_picker_worker_restarts_total", worker="0"), "a restart")
        await process.ready()
        assert (await process.workers())["p-0"]["pid"] != killed
        assert (await process.workers())["p-1"]["pid"] == others
        await end(streams[1 if lost is codes[0] else 0])
        await end(await begin(await proxy.connect(), "r2"))
        await process.shares([1, 1])
        await process.decides(3)


async def test_a_worker_that_came_back_gets_connections_of_the_others(
    nats: NatsServer, owner: Owner, tmp_path: Path
) -> None:
    """Streams that are open finish where they are, and no new one fails meanwhile."""
    async with picker(nats, owner, tmp_path) as process, Proxy((await process.state())["grpc_port"]) as proxy:
        killed = (await process.workers())["p-0"]["pid"]
        os.kill(killed, signal.SIGSTOP)
        await eventually(lambda: _takes_no_more(process), "the supervisor notices")
        channels = [await proxy.connect() for _ in range(4)]
        streams = [await begin(channel, f"r{number}") for number, channel in enumerate(channels)]
        await process.shares([0, 4])
        os.kill(killed, signal.SIGKILL)

        await process.ready()
        shares: list[int] = []

        async def even() -> bool:
            for number, channel in enumerate(channels):
                await end(await begin(channel, f"s{number}"))
            shares[:] = await process.connections()
            return shares == [2, 2]

        await eventually(even, lambda: f"the workers have {shares} connections")
        await asyncio.gather(*map(end, streams))


async def test_a_worker_that_stands_still_is_named_and_gets_no_connections(
    nats: NatsServer, owner: Owner, tmp_path: Path
) -> None:
    async with picker(nats, owner, tmp_path) as process, Proxy((await process.state())["grpc_port"]) as proxy:
        for number in range(2):
            await end(await begin(await proxy.connect(), f"r{number}"))
        await process.decides(2)
        paused = (await process.workers())["p-0"]["pid"]
        os.kill(paused, signal.SIGSTOP)

        async def named() -> bool:
            answer = await process.get("/readyz")
            return answer.status_code == 503 and list(answer.json()["reasons"]) == ["p-0"]

        await eventually(named, "the worker is named")
        assert "p-0" in (await process.get("/debug/decisions")).json()["missing"]
        assert await process.metric("pointsman_picker_decisions_total") == 2
        assert await process.metric("pointsman_picker_worker_answered", worker="0") == 0
        await eventually(lambda: _takes_no_more(process), "the supervisor notices")
        for number in range(2, 4):
            await end(await begin(await proxy.connect(), f"r{number}"))
        await process.shares([1, 3])
        os.kill(paused, signal.SIGCONT)
        await process.ready()
        await process.decides(4)


async def _takes_no_more(process: Workers) -> bool:
    return bool((await process.workers())["p-0"]["state"] == "not responding")


async def test_sigterm_drains_all_workers(nats: NatsServer, owner: Owner, tmp_path: Path) -> None:
    async with picker(nats, owner, tmp_path) as process:
        state = await process.state()
        pids = [worker["pid"] for worker in state["workers"].values()]
        async with (
            Proxy(state["grpc_port"]) as proxy,
            grpc.aio.insecure_channel(f"127.0.0.1:{state['grpc_health_port']}") as channel,
        ):
            streams = [await begin(await proxy.connect(), f"r{number}") for number in range(2)]
            watch = health_grpc.HealthStub(channel).Watch(health.HealthCheckRequest())
            statuses = [(await watch.read()).status]
            reading = asyncio.ensure_future(watch.read())  # after the call's end, the client reads no message any more
            await asyncio.sleep(0)
            stopped = asyncio.create_task(process.stop())
            statuses.append((await reading).status)
            assert statuses == [health.HealthCheckResponse.SERVING, health.HealthCheckResponse.NOT_SERVING]
            await asyncio.gather(*map(end, streams))
            assert await stopped == 0
        assert alive(pids) == []


async def test_workers_end_with_their_supervisor(nats: NatsServer, owner: Owner, tmp_path: Path) -> None:
    async with picker(nats, owner, tmp_path) as process:
        pids = [worker["pid"] for worker in (await process.workers()).values()]
        assert alive(pids) == pids
        process.kill()
        await eventually(lambda: not alive(pids), lambda: f"{alive(pids)} end")


async def test_what_keeps_workers_from_starting_is_said_once(nats: NatsServer, tmp_path: Path) -> None:
    document = tmp_path / "bad.yaml"
    document.write_text("kind: Other\n", encoding="utf-8")
    flags = (*PORTS, "--workers=2", f"--config-file={document}")
    process = Workers(nats.url, "p", tmp_path / "log", *flags)
    try:
        assert await process.ended() == 1
    finally:
        process.kill()
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if not line.startswith("{")]
    assert lines == list(dict.fromkeys(lines))
    assert all(line.startswith(str(document)) for line in lines), lines
    assert lines
