"""The ext_proc server on `grpc.aio`: reads a message, gives it to the stream's handler, writes the answers.

Messages pass as bytes: one that can't be decoded ends its own stream with a clear status.
A failure in a handler ends that stream only.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import chain
from time import perf_counter
from typing import Any, Literal, Protocol, TypeAlias, get_args

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError
from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge

from services.picker.transport.certificate import Certificate
from shared.config.problems import Invalid, Problem
from shared.model import join_host_port

log = structlog.get_logger(__name__)

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

_HEAVY = 2**20
"""Bytes of a message that takes so long to read that its handler has it wait for its turn."""
_MIDDLING = 16 * 2**10
"""Bytes of a message that may take some milliseconds. Many of them come at once, from as many streams: only one is
answered between two turns of the event loop."""
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # grpc-stubs is older

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]

Outcome = Literal["finished", "refused", "malformed", "failed", "turned away"]
_BUFFERED_BY_ENVOY = 16 * 2**20
"""Bytes of a body that deploy/envoy keeps: as many arrive, to be refused with 413, whatever the limit of a body is."""
_BESIDE = 2**20
"""Bytes of a message beside a body: headers, attributes, metadata."""


def message_limit(request_body: int) -> int:
    """Bytes that a message may have where a body may have so many. gRPC refuses longer ones by their length, before
    anything of them is copied: grpcio copies a message as a whole, which holds the event loop."""
    return max(request_body, _BUFFERED_BY_ENVOY) + _BESIDE


class ServerOptions(Struct, frozen=True, kw_only=True):
    """What the ext_proc server takes from its peers."""

    max_message_size: int = message_limit(0)
    """Bytes of a gRPC message; more than the limit of a body."""
    max_streams: int = 20_000
    """Open streams; further ones are turned away."""


DEFAULTS = ServerOptions()


class Turn:
    """One turn of the event loop: how much of it the answers to requests that have waited take."""

    MOST = 0.005
    """Seconds."""

    def __init__(self) -> None:
        self._began: float | None = None

    async def place(self) -> None:
        """Waits for a turn in which others have taken no longer."""
        while self._full():  # noqa: ASYNC110 - the next turn is what is waited for
            await asyncio.sleep(0)

    def _full(self) -> bool:
        if self._began is None:
            self._began = perf_counter()
            asyncio.get_running_loop().call_soon(self._end)
        return perf_counter() - self._began > self.MOST

    def _end(self) -> None:
        self._began = None


class StreamHandler(Protocol):
    """Handles one stream, which is one HTTP request: takes messages in and hands answers out, without waiting."""

    wake: Callable[[], None]
    """Set by the transport; called when `outbox` has answers."""

    @property
    def closed(self) -> bool:
        """Whether the stream is to be ended when what was handed out is sent."""
        ...

    def receive(self, data: bytes) -> Iterable[bytes]:
        """A message of the proxy, a serialized `ProcessingRequest`; what to answer now, in order: serialized
        `ProcessingResponse`s. For a large message an iterator reads it and makes the answers on demand. An empty
        answer isn't sent: it lets other streams have a turn. Raises DecodeError for invalid bytes."""
        ...

    @property
    def waiting(self) -> bool:
        """Whether there are, will or may be answers that no message brings."""
        ...

    @property
    def ready(self) -> bool:
        """Whether there are such answers by now."""
        ...

    @property
    def handed_back(self) -> str:
        """Why the proxy is to ask another picker, which ends the stream; empty if it isn't. Nothing was answered."""
        ...

    def outbox(self) -> Iterable[bytes]:
        """The answers that no message brings, once they can be made, in order. Empty ones as in `receive`."""
        ...

    def end(self) -> None:
        """The stream is over, for whatever reason. A transport calls this exactly once."""
        ...


class ExtProcServer:
    """Serves `ExternalProcessor/Process`. Every stream gets a handler of its own, which is ended exactly once."""

    def __init__(
        self,
        open_stream: Callable[[], StreamHandler],
        *,
        host: str = "0.0.0.0",
        port: int = 9002,
        certificate: Certificate | None = None,
        options: ServerOptions = DEFAULTS,
        registry: CollectorRegistry | None = None,
        not_ready: Callable[[], str | None] = lambda: None,
        on_metadata: Callable[[Metadata], None] = lambda _: None,
    ) -> None:
        """`not_ready` returns why nothing can be decided yet, or None. As long as there is a reason, streams end as
        UNAVAILABLE at once, so a proxy asks another picker. `on_metadata` takes every stream's initial metadata."""
        self._open_stream = open_stream
        self._not_ready = not_ready
        self._on_metadata = on_metadata
        self._host = host
        self._wanted_port = port
        self._certificate = certificate
        self._options = options
        self._server: grpc.aio.Server | None = None
        self.port = 0
        self.open = 0
        """Streams under way."""
        self._heavy = asyncio.Lock()
        self._middling = asyncio.Lock()
        self._turn = Turn()
        streams = Counter(
            "pointsman_ext_proc_streams",
            "Ended ext_proc streams: finished (half-closed, cancelled or lost: gRPC doesn't "
            "distinguish them), refused (answered by the picker), malformed (a message that isn't a "
            "ProcessingRequest), failed (an error in the picker), turned away (the picker has no "
            "endpoints yet, or the maximum of streams)",
            ["outcome"],
            registry=registry,
        )
        self._ended = {outcome: streams.labels(outcome) for outcome in get_args(Outcome)}
        gauge = Gauge("pointsman_ext_proc_open_streams", "Open ext_proc streams", registry=registry)
        gauge.set_function(lambda: self.open)

    async def start(self) -> None:
        """Begin to serve; the port is in `port` afterwards. Raises `Invalid` when the port can't be had."""
        options = self._options
        self._server = grpc.aio.server(
            options=(
                ("grpc.so_reuseport", 0),  # a taken port is an error, not a second listener that gets half
                ("grpc.max_receive_message_length", options.max_message_size),
                ("grpc.max_send_message_length", options.max_message_size),
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 1000),  # proxies may ping as often as once a second
            )
        )
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))
        self.port = listen(self._server, self._host, self._wanted_port, "--grpc-port", self._certificate)
        await self._server.start()
        log.info("ext_proc.listening", host=self._host, port=self.port, tls=self._certificate is not None)

    async def stop(self, grace: float) -> None:
        """Take no new streams (GOAWAY), wait up to `grace` seconds for the open ones, cancel what is left."""
        if self._server is not None:
            await self._server.stop(grace)

    async def _serve(self, _: AsyncIterator[bytes], context: Any) -> None:
        if (reason := self._not_ready() or self._too_many()) is not None:
            self._ended["turned away"].inc()
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
        self._on_metadata(context.invocation_metadata())
        outcome: Outcome = "finished"
        failure: tuple[grpc.StatusCode, str] | None = None
        self.open += 1
        try:
            stream = self._open_stream()
            try:
                outcome = await self._converse(stream, context)
                if stream.handed_back:
                    outcome, failure = "turned away", (grpc.StatusCode.UNAVAILABLE, stream.handed_back)
            finally:
                stream.end()
        except DecodeError as error:
            outcome = "malformed"
            failure = grpc.StatusCode.INVALID_ARGUMENT, f"a message is no ProcessingRequest: {error}"
        except (asyncio.CancelledError, grpc.aio.BaseError):
            raise  # the picker stops, or the proxy has gone
        except Exception:  # the top of a stream: the others must go on
            outcome = "failed"
            failure = grpc.StatusCode.INTERNAL, "the picker has failed on this request"
            log.exception("ext_proc.stream_failed")
        finally:
            self.open -= 1
            self._ended[outcome].inc()
        if failure is not None:
            await context.abort(*failure)

    async def _converse(self, stream: StreamHandler, context: Any) -> Outcome:
        """Drives a handler to its end. A cancelled stream may look like a half-closed one, or cancel this task.

        Raises DecodeError for bytes that are no `ProcessingRequest`."""
        read = context.read
        data = await read()
        while data is not _EOF:
            answers: Iterable[bytes]
            if _MIDDLING < len(data) <= _HEAVY:
                async with self._middling:
                    answers = stream.receive(data)
                    await asyncio.sleep(0)
            else:
                answers = stream.receive(data)
            del data  # nothing of a large body is kept while its turn or its response is awaited
            if isinstance(answers, Iterator):
                answers = await self._in_turn(answers)
            await _send(answers, context)
            answers = ()
            if (stream.closed or stream.handed_back) and not stream.ready:
                break
            data = await (self._wait(stream, context) if stream.waiting or stream.ready else read())
        return "refused" if stream.closed else "finished"

    async def _wait(self, stream: StreamHandler, context: Any) -> Any:
        """The next message of a stream whose request waits. Its answers are sent when there are some."""
        reading = asyncio.ensure_future(context.read())
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        stream.wake = wake
        try:
            while not stream.handed_back:
                if stream.ready:
                    await self._turn.place()
                    answers = stream.outbox()
                    if isinstance(answers, Iterator):
                        answers = await self._in_turn(answers)
                    await _send(answers, context)
                    continue
                if stream.closed or not stream.waiting:
                    break
                if woken.done():
                    woken = loop.create_future()
                await asyncio.wait((reading, woken), return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    break
            return _EOF if stream.closed or stream.handed_back else await reading
        finally:
            stream.wake = _nothing
            reading.cancel()

    async def _in_turn(self, answers: Iterator[bytes]) -> Iterator[bytes]:
        """The answers to a large request, from the first on that can be sent. One such request is read and decided at a
        time, so that between two steps all others have their turn."""
        async with self._heavy:
            for answer in answers:
                if answer:
                    return chain((answer,), answers)
                await asyncio.sleep(0)
        return iter(())

    def _too_many(self) -> str | None:
        """Why no further stream is taken now; None when one is. Each is memory, and no proxy counts all pickers'."""
        most = self._options.max_streams
        return f"{most} streams are open, the limit of this picker" if self.open >= most else None

    def __repr__(self) -> str:
        state = f"on {self._host}:{self.port}, {self.open} streams open" if self.port else "not started"
        return f"<ExtProcServer {state}>"


async def _send(answers: Iterable[bytes], context: Any) -> None:
    for answer in answers:
        if len(answer) > _HEAVY:
            await asyncio.sleep(0)  # others have their turn before grpcio copies it
        if answer:
            await context.write(answer)


def _nothing() -> None:
    """Nobody waits for the answers: they are fetched after the message under way."""


def listen(server: grpc.aio.Server, host: str, port: int, flag: str, certificate: Certificate | None = None) -> int:
    """Binds the server to `host:port`, with TLS when there is a certificate; the port, which for 0 is a free one.

    Raises `Invalid` when the address can't be bound.
    """
    address = join_host_port(host, port)
    try:
        if certificate is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, certificate.credentials())
    except RuntimeError as error:
        raise Invalid([Problem(flag, f"{address} can't be bound: {error}; 0 takes a free port")]) from error
