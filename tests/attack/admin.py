"""Whoever reaches the admin ports: half requests, many connections, odd paths, pages without end."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from random import Random

from tests.attack.fronts import Act, Front
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


class Admin(Front):
    """All tiers' ports."""

    name = "admin"

    def acts(self) -> Mapping[str, Act]:
        return {
            "paths": self._paths,
            "pages": self._pages,
            "half": self._half,
            "idle": self._idle,
            "slow-reader": self._slow_reader,
            "bodies": self._bodies,
            "headers": self._headers,
            "pipelined": self._pipelined,
            "garbage": self._garbage,
        }

    def _port(self, random: Random) -> int:
        return random.choice([*self.stack.watchers, *self.stack.collectors, *self.stack.pickers]).http.port

    async def _paths(self, random: Random) -> None:
        method = random.choice(("GET", "HEAD", "POST", "TRACE", "DELETE", "CONNECT"))
        await exchange(self._port(random), head(random.choice(PATHS), method=method))

    async def _pages(self, random: Random) -> None:
        """The largest pages, several at once."""
        port = self._port(random)
        await asyncio.gather(*(exchange(port, head(one, method="GET")) for one in random.sample(PAGES, 4)))

    async def _half(self, random: Random) -> None:
        async with AsyncExitStack() as life:
            port = self._port(random)
            for _ in range(30):
                _, writer = await life.enter_async_context(connection(port))
                writer.write(head("/metrics", method="GET")[: random.randint(1, 40)])
            await asyncio.sleep(random.choice((0.5, 5.0)))

    async def _idle(self, random: Random) -> None:
        async with AsyncExitStack() as life:
            port = self._port(random)
            for _ in range(IDLE):
                await life.enter_async_context(connection(port))
            await asyncio.sleep(random.choice((0.5, 4.0)))

    async def _slow_reader(self, random: Random) -> None:
        async with connection(self._port(random)) as (reader, writer):
            writer.write(head(random.choice(PAGES), method="GET"))
            for _ in range(50):
                await reader.read(20)
                await asyncio.sleep(0.05)

    async def _bodies(self, random: Random) -> None:
        size = 8 * 2**20
        data = head("/metrics", [("content-length", str(random.choice((size, 2**63, 10))))], method="POST")
        await exchange(self._port(random), data + b"a" * size)

    async def _headers(self, random: Random) -> None:
        headers = random.choice(
            ([("x-a", "a" * 10**6)], [(f"x-{one}", "a") for one in range(20_000)], [("x-a", " " * 60_000 + "b")])
        )
        await exchange(self._port(random), head("/healthz", headers, method="GET"))

    async def _pipelined(self, random: Random) -> None:
        one = head(random.choice(PAGES), method="GET").replace(b"connection: close", b"connection: keep-alive")
        async with connection(self._port(random)) as (reader, writer):
            writer.write(one * 100)
            async with asyncio.timeout(3):
                await read(reader)

    async def _garbage(self, random: Random) -> None:
        data = random.choice(
            (random.randbytes(3000), b"\r\n" * 5000, b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01" + random.randbytes(300))
        )
        async with asyncio.timeout(3):
            await exchange(self._port(random), data)
