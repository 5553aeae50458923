"""A gRPC server of the picker: methods, an address, a certificate, and the transport that serves them."""

import socket
import time
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import structlog
from msgspec import structs

from services.picker.body_buffer import MemoryBudget
from services.picker.settings.http2_options import Http2Options
from services.picker.transport.calls import MAX_QUESTION, Methods
from services.picker.transport.certificate import Certificates
from services.picker.transport.http2.server import Http2Server
from services.picker.transport.reflection import Reflection
from shared.config.problems import Invalid, Problem
from shared.model import join_host_port

log = structlog.get_logger(__name__)

Transport: TypeAlias = Literal["http2", "grpcio"]
_BUFFERED_BY_ENVOY = 16 * 2**20
"""Bytes of a body that deploy/envoy keeps: as many arrive, to be refused with 413, whatever the limit of a body is."""
_BESIDE = 2**20
"""Bytes of a message beside a body: headers, attributes, metadata."""


def message_limit(request_body: int) -> int:
    """Bytes that a message may have where a body may have so many. Longer ones are refused by their length, before
    anything of them is kept."""
    return max(request_body, _BUFFERED_BY_ENVOY) + _BESIDE


DEFAULTS = Http2Options(max_message_size=message_limit(0))


def for_health(options: Http2Options) -> Http2Options:
    """The options of a port that serves health checks alone."""
    return structs.replace(
        options,
        max_message_size=MAX_QUESTION,
        max_concurrent_streams=min(options.max_concurrent_streams, 100),
        max_streams=min(options.max_streams, 10_000),
        max_connections=min(options.max_connections, 1_000),
    )


class GrpcServer:
    """Serves methods, and reflection for their services, on one port."""

    def __init__(
        self,
        methods: Methods,
        *,
        host: str,
        port: int | None,
        flag: str,
        transport: Transport = "http2",
        options: Http2Options = DEFAULTS,
        certificates: Certificates | None = None,
        memory: MemoryBudget | None = None,
        reuse_port: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`flag` is the setting that an error names. `memory` counts messages until they are complete. Without a port,
        the server has only the connections that it adopts. `reuse_port`: other processes listen on it too (grpcio)."""
        services = sorted({path.split("/")[1] for path in methods})
        methods = {**methods, **Reflection(services).methods}
        self._host, self._wanted_port, self._flag = host, port, flag
        self._transport, self._certificates = transport, certificates
        self._server: Any
        if transport == "http2":
            memory = MemoryBudget() if memory is None else memory
            tls = None if certificates is None else certificates.context
            self._server = Http2Server(methods, options, memory=memory, clock=clock, tls=tls)
        else:
            from services.picker.transport.grpcio_server import GrpcioServer  # 0.2 s and 10 MB that others save

            self._server = GrpcioServer(methods, options, certificates=certificates, reuse_port=reuse_port)

    @property
    def port(self) -> int:
        """Where it listens, once it does."""
        port: int = self._server.port
        return port

    async def start(self) -> None:
        """Listen. Raises `Invalid` when the port can't be had."""
        if self._wanted_port is None:
            return
        try:
            await self._server.start(self._host, self._wanted_port)
        except OSError as error:
            address = join_host_port(self._host, self._wanted_port)
            message = f"{address} can't be bound: {error}; 0 takes a free port"
            raise Invalid([Problem(self._flag, message)]) from error
        tls = self._certificates is not None
        log.info("grpc.listening", host=self._host, port=self.port, tls=tls, transport=self._transport)

    async def run(self) -> None:
        """With grpcio: returns after `stop`, and raises RuntimeError when the library ends the server by itself."""
        if self._transport == "grpcio":
            await self._server.run()

    @property
    def connections(self) -> int:
        """Open ones, those aside that were released; with grpcio, which doesn't count them, none."""
        connections: int = self._server.connections
        return connections

    def on_closed(self, callback: Callable[[], None]) -> None:
        """Have `tell` called when a connection has ended."""
        self._server.on_closed = callback

    async def release(self) -> None:
        """Have the client of one connection open another one. This one ends with its streams."""
        await self._server.release()

    async def adopt(self, accepted: socket.socket) -> None:
        """Serve a connection that another process has accepted. Raises OSError and ssl.SSLError."""
        await self._server.adopt(accepted)

    async def stop(self, grace: float) -> None:
        """Take no new streams (GOAWAY), wait up to `grace` seconds for the open ones, end what is left."""
        await self._server.stop(grace)

    def __repr__(self) -> str:
        return f"<GrpcServer {self._server!r}>"
