"""HTTP/1.1 messages with trailers, read and written, as no client or server library here does it."""

import asyncio

from msgspec import Struct

Fields = list[tuple[str, str]]
"""Headers or trailers: names in lower case, in their order."""


class Message(Struct, frozen=True, kw_only=True):
    """A request or a response."""

    start: str
    """Its first line."""
    headers: Fields
    body: bytes
    trailers: Fields = []

    def header(self, name: str) -> str:
        """The first value of a header; empty when there is none."""
        return next((value for key, value in self.headers if key == name), "")

    @property
    def path(self) -> str:
        """Of a request."""
        return self.start.split(" ")[1]

    @property
    def status(self) -> int:
        """Of a response."""
        return int(self.start.split(" ")[1])


def serialize(start: str, headers: Fields, body: bytes, trailers: Fields | None = None) -> bytes:
    """A message: with its length, or with trailers and so in chunks."""
    if trailers is None:
        return _lines(start, [*headers, ("content-length", str(len(body)))]) + body
    chunks = [body[at : at + 8192] for at in range(0, len(body), 8192)]
    pieces = [b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks]
    ending = "".join(f"{name}: {value}\r\n" for name, value in trailers)
    head = _lines(start, [*headers, ("transfer-encoding", "chunked")])
    return b"".join([head, *pieces, b"0\r\n", ending.encode(), b"\r\n"])


def _lines(start: str, headers: Fields) -> bytes:
    return f"{start}\r\n{''.join(f'{name}: {value}' + chr(13) + chr(10) for name, value in headers)}\r\n".encode()


async def read(reader: asyncio.StreamReader) -> Message:
    """The next message. Raises IncompleteReadError when there is none, or only a part of it."""
    start, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().removesuffix("\r\n\r\n").split("\r\n")
    headers = _fields(lines)
    fields = dict(headers)
    if fields.get("transfer-encoding") != "chunked":
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        return Message(start=start, headers=headers, body=body)
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    lines = []
    while (line := (await reader.readuntil(b"\r\n")).decode().removesuffix("\r\n")) != "":
        lines.append(line)
    return Message(start=start, headers=headers, body=body, trailers=_fields(lines))


def _fields(lines: list[str]) -> Fields:
    split = (line.partition(":") for line in lines)
    return [(name.strip().lower(), value.strip()) for name, _, value in split]


async def request(port: int, path: str, headers: Fields, body: bytes, trailers: Fields | None = None) -> Message:
    """POST a body to a server of this machine; its answer. Raises TimeoutError when there is none within 60 s."""
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(serialize(f"POST {path} HTTP/1.1", [("host", "test"), *headers], body, trailers))
            answer = await read(reader)
        finally:
            writer.close()
        return answer
