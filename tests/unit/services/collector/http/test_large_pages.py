"""Large pages of many servers at once."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from yarl import URL

from services.collector.http.client import LARGE, MAX_LARGE, Client, Failure, ScrapeError
from tests.waiting import eventually

PAGE = b"x" * (12 * LARGE)


@asynccontextmanager
async def server(*, compressed: bool = False) -> AsyncIterator[URL]:
    """One with a large page and a small one."""
    large, encoding = (gzip.compress(PAGE), b"gzip") if compressed else (PAGE, b"identity")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        body, named = (b"small", b"identity") if request.startswith(b"GET /small") else (large, encoding)
        head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (named, len(body)) + body)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        yield URL(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")


class Readers:
    """Tasks that get large pages, and read them until `done`."""

    def __init__(self, client: Client, url: URL) -> None:
        self._client, self._url = client, url / "large"
        self.done = asyncio.Event()
        self.held = self.most = 0

    async def read(self) -> int:
        page = await self._client.get(self._url, False)
        self.held += 1
        self.most = max(self.most, self.held)
        await self.done.wait()
        self.held -= 1
        return len(page)

    def start(self, count: int) -> list[asyncio.Task[int]]:
        return [asyncio.create_task(self.read()) for _ in range(count)]


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
async def test_a_few_large_pages_are_held_at_once_and_small_ones_do_not_wait_for_them(compressed: bool) -> None:
    async with server(compressed=compressed) as url:
        client = Client(60.0, len(PAGE))
        readers = Readers(client, url)
        tasks = readers.start(3 * MAX_LARGE)
        await eventually(lambda: readers.held == MAX_LARGE)
        assert await client.get(url / "small", False) == b"small"
        readers.done.set()
        assert await asyncio.gather(*tasks) == [len(PAGE)] * len(tasks)
        assert readers.most == MAX_LARGE
        await client.close()


async def test_a_large_page_that_gets_no_place_is_no_slow_server() -> None:
    async with server() as url:
        client = Client(5.0, len(PAGE))
        readers = Readers(client, url)
        tasks = readers.start(MAX_LARGE)
        await eventually(lambda: readers.held == MAX_LARGE)
        with pytest.raises(ScrapeError, match="of other servers") as refused:
            await client.get(url / "large", False)
        assert refused.value.kind is Failure.TOO_LARGE
        readers.done.set()
        await asyncio.gather(*tasks)
        await client.close()


async def test_slow_servers_lose_their_places_to_those_that_wait() -> None:
    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send most of a large page, and no end."""
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(PAGE) + PAGE[: 2 * LARGE])
        await reader.read()
        writer.close()

    async with server() as url, await asyncio.start_server(begin, "127.0.0.1", 0) as slow:
        client = Client(60.0, len(PAGE))
        client._large._share = 0.0
        slow_url = URL(f"http://127.0.0.1:{slow.sockets[0].getsockname()[1]}/large")
        tasks = [asyncio.create_task(client.get(slow_url, False)) for _ in range(MAX_LARGE)]
        await eventually(lambda: len(client._large._having) == MAX_LARGE)
        assert not any(task.done() for task in tasks)
        page = asyncio.create_task(client.get(url / "large", False))
        await eventually(lambda: bool(client._large._waiting))
        client._expire()
        assert await page == PAGE
        for task in tasks:
            with pytest.raises(ScrapeError, match="too slowly while such pages of other servers waited"):
                await task
        await client.close()
