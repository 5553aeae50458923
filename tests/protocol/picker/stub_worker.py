"""Stands for a worker that starts as its id says: `silent` never reports, one that is among `ANSWERS` answers a request
with these bytes and ends, as another one does at once. The exit code is 3."""

import socket
import sys
import time

import msgspec

from services.picker.workers.channel import Status

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n4\r\na 1\n\r\n"
ANSWERS = {
    "length": HEAD + b"content-length: 4\r\n\r\na 1\n",
    "cut-length": HEAD + b"content-length: 9\r\n\r\na 1\n",
    "chunks": CHUNKED + b"4\r\nb 2\n\r\n0\r\n\r\n",
    "cut-chunk": CHUNKED + b"4\r\nb",
    "cut-after-chunk": CHUNKED,
    "no-end": HEAD + b"\r\na 1\n",
    "cut-head": HEAD[:12],
    "nothing": b"",
}


def answer(content: bytes) -> None:
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        channel.sendall(msgspec.json.encode(Status(started=True, ready=True)) + b"\n")
        _, (descriptor,), _, _ = socket.recv_fds(channel, 1, 1)
        with socket.socket(fileno=descriptor) as connection:
            connection.recv(65_536)
            connection.sendall(content)


if __name__ == "__main__":
    id = msgspec.msgpack.decode(sys.stdin.buffer.read())["id"]
    if id == "silent":
        time.sleep(3600)
    if id in ANSWERS:
        answer(ANSWERS[id])
    sys.exit(3)
