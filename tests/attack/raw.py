"""HTTP/1.1 on a bare connection to this machine, for messages that no client library sends."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TypeAlias

from pointsman.local.ports import LOOPBACK

Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Headers: TypeAlias = Iterable[tuple[str, str]]

MAX_READ = 2**20
"""Bytes of an answer that are read."""


@asynccontextmanager
async def connection(port: int) -> AsyncIterator[Connection]:
    """A connection that ends with a reset, whatever was left unread or unsent."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        yield reader, writer
    finally:
        reset(writer)


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST instead of FIN."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def head(path: str, headers: Headers = (), *, method: str = "POST", length: int | None = None) -> bytes:
    """The request's lines; the connection ends with its answer."""
    lines = [f"{method} {path} HTTP/1.1", "host: attack", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers]
    if length is not None:
        lines += ["content-type: application/json", f"content-length: {length}"]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode("utf-8", "surrogatepass")


def post(path: str, body: bytes, headers: Headers = ()) -> bytes:
    """A whole request."""
    return head(path, headers, length=len(body)) + body


async def exchange(port: int, data: bytes) -> bytes:
    """Send this, and read until the other side ends the connection or `MAX_READ` bytes have come."""
    async with connection(port) as (reader, writer):
        writer.write(data)
        with contextlib.suppress(ConnectionError):  # an answer may come, and the connection end, before all is sent
            await writer.drain()
        return await read(reader)


async def read(reader: asyncio.StreamReader, most: int = MAX_READ) -> bytes:
    """What comes until the end, a reset included, or until there is enough."""
    found = bytearray()
    with contextlib.suppress(ConnectionError):
        while len(found) < most and (piece := await reader.read(2**16)):
            found += piece
    return bytes(found)


def status(answer: bytes) -> int:
    """Of an answer; 0 where there is none."""
    words = answer.split(b" ", 2)
    return int(words[1]) if len(words) == 3 and words[1].isdigit() else 0
