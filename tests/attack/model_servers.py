"""Model servers that answer scrapes with what is no metrics page, never ends, or says what can't be."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import TypeAlias

from pointsman.local.ports import LOOPBACK
from tests.attack.fronts import Act, Front, Scene
from tests.attack.raw import reset
from tests.attack.target import good_file, replace
from tests.waiting import eventually

Answer: TypeAlias = Callable[[asyncio.StreamWriter, Random], Awaitable[None]]
"""To one scrape. The connection is kept when it returns."""

SERVERS = 2
LASTS = 1.5
"""Seconds for which the servers go on with one kind of answer: several scrapes, and one that times out."""
ENDLESS = 64 * 2**20
"""Bytes after which an endless answer ends: more than anybody ought to read."""
CRLF = b"\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\n"
NUMBERS = (
    *("1e308", "-1e308", "NaN", "+Inf", "-Inf", "-1", "999999999999999999", "1e-320", "0x10", "1_000", ""),
    "9" * 4000,
)
VLLM = ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc", "prefix_cache_hits_total")
LABELS = ("999999999999999999", "-16", "0", "1e200", "NaN", "", "9" * 5000, "\u0661\u0666", "16.5", "None")


def page(body: bytes, headers: bytes = b"") -> bytes:
    """A whole answer."""
    return OK + headers + b"content-length: %d\r\n\r\n" % len(body) + body


def fixed(*answers: bytes) -> Answer:
    """One of these answers."""

    async def answer(writer: asyncio.StreamWriter, random: Random) -> None:
        writer.write(random.choice(answers))

    return answer


def endless(start: bytes, *pieces: bytes, pause: float = 0.0) -> Answer:
    """These pieces again and again, until the collector has enough."""

    async def answer(writer: asyncio.StreamWriter, random: Random) -> None:
        piece = random.choice(pieces)
        if not pause:
            piece *= max(1, 2**16 // len(piece))
        writer.write(start)
        for _ in range(ENDLESS // len(piece)):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause or 0.001)

    return answer


async def _drip(writer: asyncio.StreamWriter, random: Random) -> None:
    for byte in page(b"vllm:num_requests_waiting 1\n"):
        writer.write(bytes((byte,)))
        await writer.drain()
        await asyncio.sleep(0.02)


async def _values(writer: asyncio.StreamWriter, random: Random) -> None:
    """The engine's own families with values and labels that no server has."""
    lines = [f'vllm:{name}{{model_name="m"}} {random.choice(NUMBERS)}' for name in VLLM]
    block, blocks = random.choice(LABELS), random.choice(LABELS)
    lines.append(f'vllm:cache_config_info{{block_size="{block}",num_gpu_blocks="{blocks}"}} 1')
    adapters = ",".join(f"a{number}" for number in range(random.choice((0, 10, 50_000))))
    lines.append(
        f'vllm:lora_requests_info{{max_lora="{block}",running_lora_adapters="{adapters}"}} {random.choice(NUMBERS)}'
    )
    random.shuffle(lines)
    writer.write(page("\n".join([*lines, ""]).encode()))


async def _series(writer: asyncio.StreamWriter, random: Random) -> None:
    """A hundred thousand series of a family that is read, or of one that is not."""
    name = random.choice((b"vllm:num_requests_waiting", b"other"))
    lines = b"\n".join(b'%s{engine="%d"} 1' % (name, number) for number in range(100_000))
    writer.write(page(lines + b"\n"))


async def _reset(writer: asyncio.StreamWriter, random: Random) -> None:
    writer.write(page(b"a" * 1000)[: random.choice((0, 1, 20, 80, 500))])
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    reset(writer)


async def _half_open(writer: asyncio.StreamWriter, random: Random) -> None:
    writer.write(page(b"a" * 1000)[: random.choice((0, 12, 80, 500))])
    await asyncio.sleep(10)


async def _garbage(writer: asyncio.StreamWriter, random: Random) -> None:
    writer.write(
        random.choice((b"", b"HTTP/1.1 ", OK, page(b""))) + random.randbytes(random.choice((10, 5000))) + CRLF * 2
    )


_GAUGE = b"vllm:num_requests_waiting"
IDLE = fixed(page(_GAUGE + b" 0\n"))
ANSWERS: dict[str, Answer] = {
    "blanks": fixed(
        OK + b"x-a: a" + b" " * 60_000 + b"b\r\n\r\n",
        OK + b"x-a:" + b"\t " * 30_000 + CRLF * 2,
        OK + b"x-a: " + b"a, " * 20_000 + CRLF * 2,
        b"HTTP/1.1 200" + b" " * 60_000 + b"OK\r\n\r\n",
    ),
    "interim": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n"),
    "headers": endless(OK, b"x-a: a\r\n", b"a" * 1000, b"x" * 50 + b":\r\n", b" folded\r\n"),
    "drip": _drip,
    "dripping-headers": endless(OK, b"x-a: a\r\n", b"x", pause=0.02),
    "body": endless(OK + CRLF, b"a", b"\n", b"# HELP\n", _GAUGE + b" 1\n", _GAUGE + b'{a="', b'{"'),
    "chunks": endless(OK + b"transfer-encoding: chunked\r\n\r\n", b"1\r\na\r\n", b"1;" + b"x" * 3000 + b"\r\na\r\n"),
    "framing": fixed(
        OK + b"transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\na",
        OK + b"transfer-encoding: chunked\r\n\r\n-1\r\na",
        OK + b"content-length: 99999999999999999999\r\n\r\na",
        OK + b"content-length: -5\r\n\r\na",
        OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        OK + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc",
        OK + b"content-length: 0\r\n\r\n" + page(_GAUGE + b" 7\n"),
    ),
    "other-answers": fixed(
        page(b"<html><body>" + b"<p>no metrics</p>" * 1000),
        page(b'{"a":' * 5000),
        b"HTTP/1.1 302 Found\r\nlocation: /metrics\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 301 No\r\nlocation: http://192.0.2.1:1/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 204 None\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: h2c\r\n\r\n",
        b"HTTP/1.1 999 What\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
    ),
    "values": _values,
    "series": _series,
    "long-lines": fixed(
        page(_GAUGE + b'{a="' + b"a" * 2**20 + b'"} 1\n'),
        page(_GAUGE + b'{a="' + b"\\" * 2**20 + b'"} 1\n'),
        page(_GAUGE + b"{" + b'a="b",' * 200_000 + b"} 1\n"),
        page(_GAUGE + b" " * 2**20 + b"1\n"),
        page(_GAUGE + b" " + b"1" * 2**20 + b"\n"),
        page(b"{" * 2**20),
    ),
    "reset": _reset,
    "half-open": _half_open,
    "garbage": _garbage,
}


class ModelServers(Front):
    """Servers in the endpoints file that give, for a while, one kind of answer."""

    name = "servers"
    at_once = 1
    period = 0.1

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._answer = IDLE
        self._random = Random(0)
        self._connections: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self.scrapes = 0

    @property
    def ports(self) -> list[int]:
        return [server.sockets[0].getsockname()[1] for server in self._servers]

    async def start(self) -> None:
        """Listen, and be in the endpoints file."""
        self._servers = [await asyncio.start_server(self._connected, LOOPBACK, 0) for _ in range(SERVERS)]
        replace(self.stack.endpoints_file, good_file(self.stack, self.ports))
        await eventually(lambda: self.scrapes > 0, "hostile servers are scraped")

    async def stop(self) -> None:
        """Leave the endpoints file, and be gone."""
        replace(self.stack.endpoints_file, good_file(self.stack))
        for server in self._servers:
            server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @asynccontextmanager
    async def ready(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._answer = IDLE

    def tables(self) -> Mapping[str, Act]:
        return {name: partial(self._give, answer) for name, answer in ANSWERS.items()}

    async def _give(self, answer: Answer, random: Random) -> None:
        self._answer, self._random = answer, random
        await asyncio.sleep(LASTS)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if not head.startswith(b"GET /metrics "):
                    self.scene.report(f"a hostile server got what is no scrape: {head[:40]!r}")
                self.scrapes += 1
                await self._answer(writer, self._random)
                await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the collector has left, or the attack is over
        finally:
            self._connections.discard(task)
            writer.close()
