"""nats-py's client for one connection, with access to its internals.

Names with an underscore are nats-py's; tests against a real server fail when they change.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence

import nats.errors
from nats.aio.client import DEFAULT_BUFFER_SIZE, Client, Srv
from nats.aio.transport import TcpTransport

from shared.model import join_host_port

CLOSE_TIMEOUT = 1.0
PORT = 4222
"""Of a server whose URL names none."""
TURN = 100
"""Messages that are read in one go: some milliseconds, after which others have their turn."""


class NatsClient(Client):  # type: ignore[misc, unused-ignore]
    """A client that never sends credentials in the clear if TLS was requested, and reports its end at once.

    `on_end` is called when the connection ends or can't be made; nats-py's own callback waits for the socket, for ever
    if the peer is dead. `on_unreadable` gets errors of messages whose subject or headers nats-py can't read; nats-py
    would silently stop reading.
    """

    tls_required = False
    addresses: Sequence[str] = ()
    """Where the server is."""

    def __init__(
        self,
        on_end: Callable[["NatsClient"], None] = lambda _client: None,
        on_unreadable: Callable[[Exception], None] = lambda _error: None,
    ) -> None:
        super().__init__()
        self._on_end = on_end
        self._on_unreadable = on_unreadable
        self._read = 0

    def server_expires(self) -> float | None:
        """When the server's certificate expires, in seconds since the epoch; None without TLS."""
        writer = getattr(self._transport, "_io_writer", None)
        certificate = (writer.get_extra_info("peercert") if writer is not None else None) or {}
        return ssl.cert_time_to_seconds(certificate["notAfter"]) if "notAfter" in certificate else None

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """nats-py takes half of the time in which a snapshot is read for its headers. It also strips all white space of
        values, but a subject can end in other white space than spaces and tabs."""
        headers: dict[str, str] = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, found, value = line.partition(":")
            name = name.strip()
            if found and name.isascii() and name.isprintable() and " " not in name:
                headers[name] = value.strip(" \t")
        return headers

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        try:
            await super()._process_msg(sid, subject, reply, data, headers)
        except Exception as error:  # noqa: BLE001 - whatever one message is, those behind it are to be read
            self._on_unreadable(error)
        self._read += 1
        if self._read % TURN == 0:
            await asyncio.sleep(0)

    async def _flush_pending(self, force_flush: bool = False) -> None:
        """nats-py leaves the write to a task, two turns of the event loop later. That task waits for a slow server, so
        it has what is written while the socket's buffer isn't empty. Raises ConnectionClosedError if the connection has
        just been reset: nats-py notices that one turn later, and uvloop's transports raise RuntimeError meanwhile."""
        writer = getattr(self._transport, "_io_writer", None)
        if force_flush or not self.is_connected or writer is None or writer.transport.get_write_buffer_size():
            await super()._flush_pending(force_flush)
        elif writer.transport.is_closing():
            self._on_end(self)
            raise nats.errors.ConnectionClosedError
        elif self._pending:
            pending, self._pending, self._pending_data_size = self._pending, [], 0
            writer.writelines(pending)

    async def _connect_to_server(self, s: Srv) -> None:
        """nats-py would have the event loop look up the server's name."""
        s.last_attempt = time.monotonic()
        for address in self.addresses:
            self._transport = TcpTransport()  # type: ignore[no-untyped-call]
            uri = s.uri._replace(netloc=join_host_port(address, s.uri.port or PORT))
            try:
                await self._transport.connect(uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])
            except (OSError, TimeoutError):
                if address == self.addresses[-1]:
                    raise
            else:
                return

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if not self.is_closed:
            self._on_end(self)
        await super()._close(status, do_cbs)

    def _connect_command(self) -> bytes:
        if self.tls_required and not self._server_info.get("tls_required"):
            raise nats.errors.Error("TLS is asked for, and the server doesn't offer it")
        command: bytes = super()._connect_command()
        return command


async def close_client(client: Client) -> None:
    """Close without waiting for the peer, as nats-py does until it has emptied the socket's buffer; end the tasks."""
    if client._transport is None:
        return  # it has never begun to connect
    tasks = [
        task
        for name in ("_reading_task", "_ping_interval_task", "_flusher_task")
        if isinstance(task := getattr(client, name, None), asyncio.Task)
    ]
    subscriptions = list(client._subs.values())
    if client.is_connected:
        await _close(client)
    writer = getattr(client._transport, "_io_writer", None)
    if writer is not None:
        writer.transport.abort()
    await _close(client)
    for subscription in subscriptions:
        subscription._stop_processing()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _close(client: Client) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await client.close()
    except (TimeoutError, OSError, nats.errors.Error):
        pass  # the transport is aborted in any case: nothing of it stays open
