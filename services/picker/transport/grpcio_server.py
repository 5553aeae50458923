"""The same methods on `grpc.aio`, for `--transport grpcio`."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from services.picker.settings.http2_options import Http2Options
from services.picker.transport.calls import Call, Methods, StatusCode
from services.picker.transport.certificate import Certificates
from shared.model import join_host_port

_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # grpc-stubs is older
_GenericRpcHandler: Any = grpc.GenericRpcHandler
_PENDING = 256 * 2**10
"""Bytes that wait to be written before a call is to make no more."""
_NEVER = 2**31 - 1
"""Milliseconds after which grpcio sends no PING."""
_LOOK = 0.5
"""Seconds between looks at whether the library still serves."""
_HEAVY = 2**20
"""Bytes of a message that grpcio copies for so long that others have their turn before."""


class GrpcioServer:
    """A gRPC server on one address, by the library."""

    def __init__(
        self,
        methods: Methods,
        options: Http2Options,
        *,
        certificates: Certificates | None = None,
        reuse_port: bool = False,
    ) -> None:
        self._methods = methods
        self._options = options
        self._certificates = certificates
        self._reuse_port = reuse_port
        self._server: grpc.aio.Server | None = None
        self._stopping = False
        self.port = 0
        self.connections = 0

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError when the address can't be had."""
        options = self._options
        keepalive = round(options.keepalive_time * 1000) or _NEVER
        self._server = grpc.aio.server(
            options=(
                ("grpc.so_reuseport", int(self._reuse_port)),  # otherwise a taken port is an error
                ("grpc.max_receive_message_length", options.max_message_size),
                ("grpc.max_send_message_length", options.max_message_size),
                ("grpc.max_metadata_size", options.max_header_list),
                ("grpc.max_concurrent_streams", options.max_concurrent_streams),
                ("grpc.keepalive_time_ms", keepalive),
                ("grpc.compression_enabled_algorithms_bitset", 1),  # none: it decompresses without a limit of its own
                ("grpc.keepalive_timeout_ms", round(options.keepalive_timeout * 1000)),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 1000),  # proxies may ping as often as once a second
            )
        )
        self._server.add_generic_rpc_handlers((_Handlers(self._methods),))
        address = join_host_port(host, port)
        try:
            if self._certificates is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, _credentials(self._certificates))
        except RuntimeError as error:
            raise OSError(str(error)) from error
        await self._server.start()

    async def run(self) -> None:
        """Returns after `stop`. Raises RuntimeError when the library ends the server by itself, as it does on a path
        that isn't UTF-8."""
        server: Any = self._server
        while not self._stopping:
            if not server._server.is_running():  # `wait_for_termination` doesn't return then
                self._server = None  # and `stop` would take its whole grace
                raise RuntimeError(f"grpcio has ended the server: {self!r}")
            await asyncio.sleep(_LOOK)

    async def stop(self, grace: float) -> None:
        """Take no new streams (GOAWAY), wait up to `grace` seconds for the open ones, cancel what is left."""
        self._stopping = True
        if self._server is not None:
            await self._server.stop(grace)

    def __repr__(self) -> str:
        return f"<GrpcioServer on port {self.port}>"


class _Handlers(_GenericRpcHandler):  # type: ignore[misc]  # grpc-stubs makes it generic, which it isn't
    def __init__(self, methods: Methods) -> None:
        self._methods = methods

    def service(self, handler_call_details: Any) -> Any:
        method = self._methods.get(handler_call_details.method)
        if method is None:
            return None

        async def serve(_: AsyncIterator[bytes], context: Any) -> None:
            stream = _Stream(context)
            metadata = [(name, value) for name, value in context.invocation_metadata() if isinstance(value, str)]
            try:
                await stream.serve(method(stream, metadata))
            except asyncio.CancelledError:
                stream.end()
                raise

        return grpc.stream_stream_rpc_method_handler(serve)


class _Stream:
    """One call: reads a message when the last one is taken, and writes what the call sends."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._call: Call | None = None
        self._out: deque[bytes] = deque()
        self._pending = 0
        self._status: tuple[StatusCode, str] | None = None
        self._changed = asyncio.Event()
        self._paused = False

    @property
    def congested(self) -> bool:
        return self._pending > _PENDING

    def send(self, message: bytes) -> None:
        if self._status is None:
            self._out.append(message)
            self._pending += len(message)
            self._changed.set()

    def finish(self, status: StatusCode = StatusCode.OK, details: str = "") -> None:
        if self._status is None:
            self._status = status, details
            self._changed.set()
            self.end()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._changed.set()

    def end(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.end()

    async def serve(self, call: Call) -> None:
        """Until the call's end."""
        if self._status is not None:
            call.end()
        else:
            self._call = call
        reading: asyncio.Future[Any] | None = None
        changed: asyncio.Future[Any] | None = None
        half_closed = False
        try:
            while True:
                await self._write()
                if self._status is not None:
                    break
                if reading is None and not (half_closed or self._paused):
                    reading = asyncio.ensure_future(self._context.read())
                changed = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait([task for task in (reading, changed) if task], return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if reading is not None and reading.done():
                    message, reading = reading.result(), None
                    half_closed = message is _EOF
                    if self._call is not None:
                        self._call.half_close() if half_closed else self._call.receive(message)
                    del message  # nothing of a large one is kept while the next is awaited
        finally:
            for task in (reading, changed):
                if task is not None:
                    task.cancel()
            self.end()
        status, details = self._status
        if status is not StatusCode.OK:
            await self._context.abort(_CODES[status], details)

    async def _write(self) -> None:
        self._changed.clear()
        while self._out:
            message = self._out.popleft()
            if len(message) > _HEAVY:
                await asyncio.sleep(0)
            await self._context.write(message)
            congested = self.congested
            self._pending -= len(message)
            del message
            if congested and not self.congested and self._call is not None:
                self._call.drained()


_CODES = {code: next(status for status in grpc.StatusCode if status.value[0] == code) for code in StatusCode}


def _credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Credentials that follow the certificates."""
    applied: list[object] = []

    def configuration() -> Any:
        used = certificates.certificate
        applied[:] = [used, certificates.client_ca]
        pairs = [(used.key.encode(), used.chain.encode())]
        return grpc.ssl_server_certificate_configuration(pairs, certificates.client_ca.encode() or None)

    def fetch() -> Any:
        return None if applied == [certificates.certificate, certificates.client_ca] else configuration()

    return grpc.dynamic_ssl_server_credentials(configuration(), fetch, bool(certificates.client_ca))
