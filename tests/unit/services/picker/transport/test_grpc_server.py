"""The ext_proc server with a real gRPC client on the other side."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import grpc
import grpc.aio
import pytest
from hpack import Encoder
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from services.picker.extproc.messages import ProcessingRequest
from services.picker.extproc.outgoing import REQUEST_HEADERS_UNCHANGED, RESPONSE_HEADERS_UNCHANGED
from services.picker.settings.http2_options import Http2Options
from services.picker.transport.certificate import Certificate, self_signed
from services.picker.transport.ext_proc import SERVICE
from services.picker.transport.grpc_server import DEFAULTS, Transport, message_limit
from shared.config.problems import Invalid
from tests.ext_proc_server import ExtProcServer
from tests.unit.services.picker.extproc.proxy import body, headers, response_headers
from tests.unit.services.picker.transport.http2.peer import END_HEADERS, HEADERS, PREFACE, REQUEST, frame, settings
from tests.unit.services.picker.transport.immediate import Immediate
from tests.waiting import eventually

GRPC: Any = grpc.aio
METHOD = f"/{SERVICE}/Process"
pytestmark = pytest.mark.usefixtures("transport")


class Recorder(Immediate):
    """An handler that gives each message one or two answers, and remembers what happened to it."""

    def __init__(self) -> None:
        self.received: list[str | None] = []
        self.ends = 0
        self.ended = asyncio.Event()

    def receive(self, data: bytes) -> Sequence[bytes]:
        message = ProcessingRequest.FromString(data)
        phase = message.WhichOneof("request")
        self.received.append(phase)
        match phase:
            case "request_headers":
                return [REQUEST_HEADERS_UNCHANGED]
            case "response_headers":
                return [RESPONSE_HEADERS_UNCHANGED, REQUEST_HEADERS_UNCHANGED]
            case "request_body" if message.request_body.body == b"boom":
                raise ZeroDivisionError("a bug in a handler")
            case "request_body":
                self.closed = message.request_body.end_of_stream
                return [REQUEST_HEADERS_UNCHANGED]
        return []

    def end(self) -> None:
        self.ends += 1
        self.ended.set()


class Serving:
    """A server on a free port, its handlers, and a client's channel to it."""

    def __init__(self, server: ExtProcServer, handlers: list[Recorder], registry: CollectorRegistry) -> None:
        self.server = server
        self.handlers = handlers
        self.registry = registry

    def ended(self, outcome: str) -> float | None:
        return self.registry.get_sample_value("pointsman_ext_proc_streams_total", {"outcome": outcome})

    async def handler(self, number: int) -> Recorder:
        """The handler of a stream, when it has ended."""
        await asyncio.wait_for(self.handlers[number].ended.wait(), 60)
        await asyncio.sleep(0)
        return self.handlers[number]


@asynccontextmanager
async def serving(
    certificate: Certificate | None = None,
    options: Http2Options = DEFAULTS,
    max_streams: int = 20_000,
    make: Callable[[], Recorder] = Recorder,
    not_ready: Callable[[], str | None] = lambda: None,
) -> AsyncIterator[Serving]:
    handlers: list[Recorder] = []

    def open_exchange() -> Recorder:
        handlers.append(make())
        return handlers[-1]

    registry = CollectorRegistry()
    server = ExtProcServer(
        open_exchange,
        certificate=certificate,
        options=options,
        max_streams=max_streams,
        registry=registry,
        not_ready=not_ready,
    )
    await server.start()
    try:
        yield Serving(server, handlers, registry)
    finally:
        await server.stop(0)


@asynccontextmanager
async def stream(port: int, channel: Any = None) -> AsyncIterator[Any]:
    """A Process call, of raw bytes in both directions, on a connection of its own."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with channel or GRPC.insecure_channel(f"127.0.0.1:{port}", options=options) as opened:
        call = opened.stream_stream(METHOD)()
        try:
            yield call
        finally:
            call.cancel()


async def say(call: Any, message: Any) -> None:
    await call.write(message.SerializeToString())


async def hear(call: Any) -> bytes:
    data = await asyncio.wait_for(call.read(), 60)
    assert isinstance(data, bytes), data
    return data


@asynccontextmanager
async def begun(served: Serving) -> AsyncIterator[Any]:
    """A stream whose handler has answered once."""
    async with stream(served.server.port) as call:
        await say(call, headers())
        assert await hear(call) == REQUEST_HEADERS_UNCHANGED
        yield call


async def test_while_nothing_can_be_decided_a_stream_ends_so_that_a_proxy_asks_another_picker() -> None:
    reasons = ["no view yet"]
    async with serving(not_ready=lambda: reasons[0] if reasons else None) as served:
        async with stream(served.server.port) as call:
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            assert await call.details() == "no view yet"
        assert served.handlers == []
        assert served.ended("turned away") == 1
        reasons.clear()
        async with begun(served):
            pass


async def test_a_stream_beyond_those_that_may_be_open_ends_so_that_a_proxy_asks_another_picker() -> None:
    async with serving(max_streams=1) as served:
        async with begun(served) as call:
            async with stream(served.server.port) as late:
                assert await late.code() is grpc.StatusCode.UNAVAILABLE
                assert await late.details() == "1 streams are open, the limit of this picker"
            await say(call, response_headers())
            assert await hear(call) == RESPONSE_HEADERS_UNCHANGED
        assert served.ended("turned away") == 1
        await served.handler(0)
        async with begun(served):
            pass


@pytest.mark.parametrize("lost", ["stream", "connection"])
async def test_a_stream_that_is_lost_ends_its_exchange(lost: str) -> None:
    async with serving() as served:
        channel = GRPC.insecure_channel(f"127.0.0.1:{served.server.port}")
        calls = [channel.stream_stream(METHOD)() for _ in range(3)]
        for call in calls:
            await say(call, headers())
            await hear(call)
        assert served.server.open == served.registry.get_sample_value("pointsman_ext_proc_open_streams") == 3
        if lost == "stream":
            for call in calls:
                call.cancel()
        else:
            await channel.close()
        assert [(await served.handler(number)).ends for number in range(3)] == [1, 1, 1]
        await eventually(lambda: (served.server.open, served.ended("finished")) == (0, 3))
        await channel.close()


async def test_a_closed_exchange_ends_the_stream_after_its_answers() -> None:
    async with serving() as served, stream(served.server.port) as call:
        await say(call, body(b"refused", end=True))
        await hear(call)
        assert await call.read() is GRPC.EOF
        assert await call.code() is grpc.StatusCode.OK
        assert (await served.handler(0)).ends == 1
        assert served.ended("refused") == 1


async def test_a_failing_exchange_ends_its_own_stream_only() -> None:
    with capture_logs() as logs:
        async with serving() as served, GRPC.insecure_channel(f"127.0.0.1:{served.server.port}") as channel:
            good = channel.stream_stream(METHOD)()
            await say(good, headers())
            await hear(good)
            bad = channel.stream_stream(METHOD)()
            await say(bad, body(b"boom"))
            assert await bad.code() is grpc.StatusCode.INTERNAL
            assert "boom" not in await bad.details()
            assert (await served.handler(1)).ends == 1
            assert served.ended("failed") == 1
            await say(good, response_headers())
            assert await hear(good) == RESPONSE_HEADERS_UNCHANGED
            assert served.handlers[0].ends == 0
            good.cancel()
            await served.handler(0)
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["ext_proc.stream_failed"]


async def test_bytes_that_are_no_message_end_their_stream_with_what_is_wrong() -> None:
    async with serving() as served, stream(served.server.port) as call:
        await call.write(b"\xff\xff\xff")
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "no ProcessingRequest" in await call.details()
        assert (await served.handler(0)).ends == 1
        assert served.ended("malformed") == 1


async def test_a_message_larger_than_the_setting_ends_its_stream_only() -> None:
    """By default bodies of 16 MiB pass, and those that are a little larger arrive, to be answered; gRPC's own limit is
    4 MiB."""
    for options, size, most in (
        (Http2Options(max_message_size=1000), 900, 2000),
        (DEFAULTS, 2**24 + 2**19, 2**24 + 2**20),
        (Http2Options(max_message_size=message_limit(2**25)), 2**25, 2**25 + 2**20),
    ):
        async with serving(options=options) as served:
            async with stream(served.server.port) as call:
                await say(call, body(b"x" * most))
                assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert (await served.handler(0)).ends == 1
                assert served.handlers[0].received == []
            async with stream(served.server.port) as call:
                await say(call, body(b"x" * size))
                await hear(call)


async def test_a_stopping_server_takes_nothing_new_and_lets_open_streams_finish() -> None:
    async with serving() as served, begun(served) as call:
        stopping = asyncio.create_task(served.server.stop(60))
        await asyncio.sleep(0.05)
        async with stream(served.server.port) as late:
            assert await late.code() is grpc.StatusCode.UNAVAILABLE
        await say(call, response_headers())
        assert [await hear(call), await hear(call)] == [RESPONSE_HEADERS_UNCHANGED, REQUEST_HEADERS_UNCHANGED]
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        await asyncio.wait_for(stopping, 60)
        assert len(served.handlers) == 1
        assert served.handlers[0].ends == 1


async def test_a_stream_that_outlasts_the_grace_is_cancelled_and_ended() -> None:
    async with serving() as served, begun(served):
        await asyncio.wait_for(served.server.stop(0.05), 60)
        assert (await served.handler(0)).ends == 1
        assert served.server.open == 0
        assert served.ended("finished") == 1


async def test_tls_with_the_certificate_that_is_made_at_start() -> None:
    certificate = self_signed(["localhost", "127.0.0.1"], datetime.now(UTC))
    async with serving(certificate) as served:
        credentials = grpc.ssl_channel_credentials(certificate.chain.encode())
        channel = GRPC.secure_channel(f"127.0.0.1:{served.server.port}", credentials)
        async with stream(served.server.port, channel) as call:
            await say(call, headers())
            assert await hear(call) == REQUEST_HEADERS_UNCHANGED


async def test_a_taken_port_is_an_error_that_names_the_flag() -> None:
    async with serving() as served:
        second = ExtProcServer(Recorder, port=served.server.port)
        with pytest.raises(Invalid, match=rf"--grpc-port: 127.0.0.1:{served.server.port} can't be bound"):
            await second.start()


# Requests that wait


class Patient(Recorder):
    """A handler whose request waits from its body on until a test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = False
        self.answers: list[bytes] = []
        self.refuses = self.stays = False

    def receive(self, data: bytes) -> Sequence[bytes]:
        phase = ProcessingRequest.FromString(data).WhichOneof("request")
        if phase != "request_body":
            return super().receive(data)
        self.received.append(phase)
        self.waiting = True
        return []

    def outbox(self) -> Sequence[bytes]:
        self.ready = False
        self.waiting, self.closed = self.stays, self.refuses
        if self.answers == [b"boom"]:
            raise ZeroDivisionError("a bug in a handler")
        answers, self.answers = self.answers, []
        return answers

    def go_on(self, *answers: bytes, refuses: bool = False) -> None:
        self.answers, self.refuses = list(answers), refuses
        self.ready = True
        self.wake()


@asynccontextmanager
async def waiting() -> AsyncIterator[tuple[Serving, Patient, Any]]:
    """A stream whose request waits."""
    async with serving(make=Patient) as served, stream(served.server.port) as call:
        await say(call, body(b"prompt", end=True))
        await eventually(lambda: bool(served.handlers) and served.handlers[0].waiting, "it waits")
        handler = served.handlers[0]
        assert isinstance(handler, Patient)
        yield served, handler, call


async def test_answers_come_without_a_message_and_messages_while_the_request_waits() -> None:
    async with waiting() as (_, handler, call):
        await say(call, headers())
        assert await hear(call) == REQUEST_HEADERS_UNCHANGED
        assert handler.waiting
        handler.go_on(b"one", b"", b"two")
        assert [await hear(call), await hear(call)] == [b"one", b"two"]
        await say(call, response_headers())
        assert [await hear(call), await hear(call)] == [RESPONSE_HEADERS_UNCHANGED, REQUEST_HEADERS_UNCHANGED]
        await call.done_writing()
        assert await call.read() is GRPC.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_a_refusal_after_waiting_ends_the_stream() -> None:
    async with waiting() as (served, handler, call):
        handler.go_on(b"no", refuses=True)
        assert await hear(call) == b"no"
        assert await call.read() is GRPC.EOF
        assert await call.code() is grpc.StatusCode.OK
        assert (await served.handler(0)).ends == 1
        assert served.ended("refused") == 1


async def test_a_handler_that_fails_after_waiting_ends_its_stream() -> None:
    with capture_logs():
        async with waiting() as (served, handler, call):
            handler.go_on(b"boom")
            assert await call.code() is grpc.StatusCode.INTERNAL
            assert (await served.handler(0)).ends == 1
            assert served.ended("failed") == 1


async def test_a_handler_may_answer_at_any_time_later() -> None:
    async with waiting() as (served, handler, call):
        handler.stays = True
        handler.go_on(b"one")
        assert await hear(call) == b"one"
        await say(call, headers())
        assert await hear(call) == REQUEST_HEADERS_UNCHANGED
        handler.go_on(b"two", refuses=True)
        assert await hear(call) == b"two"
        assert await call.read() is GRPC.EOF
        assert served.ended("refused") == 1


class Evicted(Recorder):
    """A handler whose request is evicted while its answers are on their way."""

    def receive(self, data: bytes) -> Sequence[bytes]:
        self.closed = self.ready = True
        return [b"one"]

    def outbox(self) -> Sequence[bytes]:
        self.ready = False
        return [b"evicted"]


async def test_a_request_that_is_evicted_while_the_transport_writes_is_told() -> None:
    async with serving(make=Evicted) as served, stream(served.server.port) as call:
        await say(call, headers())
        assert [await hear(call), await hear(call)] == [b"one", b"evicted"]
        assert await call.read() is GRPC.EOF
        assert served.ended("refused") == 1


async def test_a_request_that_is_handed_back_ends_its_stream_as_unavailable() -> None:
    async with waiting() as (served, handler, call):
        handler.handed_back = "ask another one"
        handler.wake()
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert await call.details() == "ask another one"
        assert (await served.handler(0)).ends == 1
        assert served.ended("turned away") == 1


@pytest.mark.parametrize("how", ["cancelled", "half-closed"])
async def test_a_stream_that_ends_while_its_request_waits_ends_its_handler(how: str) -> None:
    async with waiting() as (served, handler, call):
        if how == "cancelled":
            call.cancel()
        else:
            await call.done_writing()
        assert (await served.handler(0)).ends == 1
        await eventually(lambda: served.server.open == 0)
        handler.go_on(b"too late")


class Ready(Patient):
    """A handler whose answers are there at once, but no message brings them."""

    def receive(self, data: bytes) -> Sequence[bytes]:
        super().receive(data)
        self.answers, self.ready = [b"one"], True
        return []


async def test_a_request_that_has_waited_before_anybody_listens_is_answered() -> None:
    async with serving(make=Ready) as served, stream(served.server.port) as call:
        await say(call, body(b"prompt", end=True))
        assert await hear(call) == b"one"


async def test_that_a_request_has_ended_the_server_is_noticed(transport: Transport) -> None:
    """grpcio ends the whole server for a path that isn't UTF-8."""
    async with serving() as served:
        running = asyncio.ensure_future(served.server.server.run())
        _, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
        fields = Encoder().encode(
            [(b":path", b"/\xff") if name == ":path" else (name, value) for name, value in REQUEST]
        )
        writer.write(PREFACE + settings() + frame(HEADERS, END_HEADERS, 1, fields))
        if transport == "grpcio":
            with pytest.raises(RuntimeError, match="grpcio has ended the server"):
                await running
        else:
            await running
        writer.close()


async def test_grpcio_decompresses_nothing_because_it_would_do_so_without_a_limit(transport: Transport) -> None:
    async with serving() as served, GRPC.insecure_channel(f"127.0.0.1:{served.server.port}") as channel:
        call = channel.stream_stream(METHOD)(compression=grpc.Compression.Gzip)
        with suppress(grpc.aio.AioRpcError):  # it may have ended already
            await call.write(b"\0" * 1000)
        code = await asyncio.wait_for(call.code(), 60)
    refused = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNIMPLEMENTED}
    assert code in (refused if transport == "grpcio" else {grpc.StatusCode.INVALID_ARGUMENT})
