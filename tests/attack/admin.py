"""Clients of the admin ports: half requests, many connections, odd paths, pages without end."""

import asyncio
from contextlib import AsyncExitStack
from random import Random

from tests.attack.fronts import Front
from tests.attack.raw import connection, exchange, head, read

IDLE = 300
"""Connections at once: more than a port keeps."""
PAGES = ("/metrics", "/debug/state", "/debug/decisions?limit=1000000000", "/debug/decisions", "/readyz", "/")
PATHS = (
    "/debug/decisions/../../../etc/passwd",
    "/debug/decisions/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "/debug/decisions/%00",
    "/debug/decisions/" + "a" * 20_000,
    "/debug/decisions/a?limit=-1",
    "/debug/decisions?limit=" + "9" * 5000,
    "/debug/decisions?limit=1e9&limit=2",
    "/metrics?" + "a=b&" * 5000,
    "http://192.0.2.1/metrics",
    "//metrics",
    "*",
    "/\u00e9\ud800",
)
HEADERS = ([("x-a", "a" * 10**6)], [(f"x-{number}", "a") for number in range(20_000)], [("x-a", " " * 60_000 + "b")])


class Admin(Front):
    """The ports of all tiers."""

    name = "admin"

    def _port(self, random: Random) -> int:
        return random.choice([*self.stack.watchers, *self.stack.collectors, *self.stack.pickers]).http.port

    async def act_paths(self, random: Random) -> None:
        method = random.choice(("GET", "HEAD", "POST", "TRACE", "DELETE", "CONNECT"))
        await exchange(self._port(random), head(random.choice(PATHS), method=method))

    async def act_pages(self, random: Random) -> None:
        """The largest pages, several at once."""
        port = self._port(random)
        await asyncio.gather(*(exchange(port, head(page, method="GET")) for page in random.sample(PAGES, 4)))

    async def act_half(self, random: Random) -> None:
        await self._hold(random, 30, head("/metrics", method="GET"), random.choice((0.5, 5.0)))

    async def act_idle(self, random: Random) -> None:
        await self._hold(random, IDLE, b"", random.choice((0.5, 4.0)))

    async def _hold(self, random: Random, count: int, request: bytes, seconds: float) -> None:
        """Keep connections open that have sent a part of the request."""
        port = self._port(random)
        async with AsyncExitStack() as life:
            for _ in range(count):
                _, writer = await life.enter_async_context(connection(port))
                writer.write(request[: random.randint(1, 40)])
            await asyncio.sleep(seconds)

    async def act_slow_reader(self, random: Random) -> None:
        async with connection(self._port(random)) as (reader, writer):
            writer.write(head(random.choice(PAGES), method="GET"))
            for _ in range(50):
                await reader.read(20)
                await asyncio.sleep(0.05)

    async def act_bodies(self, random: Random) -> None:
        size = 8 * 2**20
        data = head("/metrics", [("content-length", str(random.choice((size, 2**63, 10))))], method="POST")
        await exchange(self._port(random), data + b"a" * size)

    async def act_headers(self, random: Random) -> None:
        await exchange(self._port(random), head("/healthz", random.choice(HEADERS), method="GET"))

    async def act_pipelined(self, random: Random) -> None:
        request = head(random.choice(PAGES), method="GET").replace(b"connection: close", b"connection: keep-alive")
        async with connection(self._port(random)) as (reader, writer), asyncio.timeout(3):
            writer.write(request * 100)
            await read(reader)

    async def act_garbage(self, random: Random) -> None:
        cases = (
            random.randbytes(3000),
            b"\r\n" * 5000,
            b"GET / HTTP/9.9\r\n\r\n",
            b"\x16\x03\x01" + random.randbytes(300),
        )
        async with asyncio.timeout(3):
            await exchange(self._port(random), random.choice(cases))
