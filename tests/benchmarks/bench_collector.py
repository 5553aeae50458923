"""A collector under load: cores, memory, and how soon what it saw is in the pickers' columns.

    .venv/bin/python -m tests.benchmarks.bench_collector [cores|visible|memory]

It starts a nats-server, a collector as it is installed (`pointsman collector`), a server of pages of real size (the
recorded vLLM page where POINTSMAN_FIXTURES says where it is, else a simulator's), and readers that do what a picker
does with frames. Every endpoint has an address of its own (127.1.0.0/16), and on every page the number of waiting
requests is another one: nothing is saved because nothing changed. It prints

- cores: pages/s and the collector's CPU at 100 endpoints every 50 ms, in cores, per page, and per page as a multiple of
  a fixed loop of plain Python that is timed in the same run; nats-server's CPU, and a reader's;
- visible: that number *is* the moment at which the server wrote the page, so a reader knows the time from there to the
  value in its columns: the way of the page to the collector, its scan, the wait for others to travel with, the frame's
  way over NATS, decoding and applying, for 1, 2 and 4 reader processes; then the same from the moment at which the
  collector has read the page, which it writes over that number;
- memory: 1 000 endpoints once a second for a minute; resident memory every ten seconds, and the CPU per page.

Beside a figure that should not be above some other stands that one, and `missed` where it is.

All of it takes about two minutes; with the readers there are up to seven processes, so on two cores the times include
waiting for a core.
"""

import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import uvloop

from pointsman import cli
from services.collector.http.client import Client
from services.collector.interfaces import Poll
from services.collector.sources.http import HttpSource
from services.picker.state.view import View
from shared.attributes import WAITING_QUEUE_SIZE
from shared.bus.connection import Bus
from shared.bus.frame_bucket import FrameBucket
from shared.bus.frame_reader import FrameReader
from shared.bus.messages import Frame
from shared.bus.publisher import FactPublisher
from shared.bus.subjects import Subjects, fact_key, pool_token
from shared.model import Endpoint, Fact
from shared.service import logs
from tests.benchmarks.bench_conversation import reference
from tests.benchmarks.bench_scrape import held, real_size_page
from tests.nats import NatsServer, free_port, nats_server
from tests.waiting import eventually

SUBJECTS, POOL = Subjects(), pool_token("default", "default")
TICK, PAGE_SIZE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
NUMBER = re.compile(rb"(?<=\n)(vllm:num_requests_waiting(?:\{[^\n]*\})? )([^ \n]+)")
WIDTH = 18


def endpoints(count: int, port: int) -> list[Endpoint]:
    """As many servers, told apart by their address."""
    return [
        Endpoint(id=f"default/m{number}", name=f"m{number}", address=f"127.1.{number >> 8}.{number & 255}", port=port)
        for number in range(count)
    ]


# The children


class PageServer(asyncio.Protocol):
    """Answers every request with the page of this moment."""

    before = after = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports have another base

    def data_received(self, data: bytes) -> None:
        self._transport.writelines([self.before, f"{time.monotonic():0{WIDTH}.6f}".encode(), self.after])


async def serve_pages(page: bytes) -> None:
    """The child that serves: until standard input closes."""
    found = NUMBER.search(page)
    assert found is not None, "the page has the number of waiting requests"
    length = len(page) - len(found.group(2)) + WIDTH
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\n\r\n"
    PageServer.before, PageServer.after = head.encode() + page[: found.start(2)], page[found.end(2) :]
    server = await asyncio.get_running_loop().create_server(PageServer, "0.0.0.0", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


def collect(arguments: list[str]) -> int:
    """The child that collects: as it is installed, but for the moments that it writes on each page that it has read."""

    def poller(source: HttpSource, endpoint: Endpoint, http: Client) -> Poll:
        poll = original(source, endpoint, http)

        async def stamped() -> bytes:
            page: bytes = await poll()
            found = NUMBER.search(page)
            assert found is not None
            return page[: found.start(2)] + f"{time.monotonic():0{WIDTH}.6f}".encode() + page[found.end(2) :]

        return stamped

    original = HttpSource.poller
    HttpSource.poller = poller  # type: ignore[method-assign, assignment]
    return cli.main(["collector", *arguments])


async def read_frames(url: str, count: int) -> None:
    """The child that reads: prints what it measured between two lines on standard input."""
    view, taken = View(), list[Any]()
    view.reset({fact_key(POOL, endpoint): endpoint for endpoint in endpoints(count, 1)})
    assert len(view.layout) == count
    column = view.columns.numbers(WAITING_QUEUE_SIZE.wire)

    def on_frame(frame: Frame, extra: float) -> None:
        before = column.values
        view.apply_frame(frame, time.monotonic(), extra)
        changed = column.values != before
        taken.append(time.monotonic() - column.values[changed])

    async with Bus(url, name="picker") as bus:
        reader = FrameReader(bus, SUBJECTS, POOL, on_frame)
        await reader.start()
        await bus.wait_connected(5.0)
        print("ready", flush=True)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, sys.stdin.readline)
        taken.clear()
        frames, used, began = reader.frames, time.process_time(), time.monotonic()
        await loop.run_in_executor(None, sys.stdin.readline)
        used, lasted = time.process_time() - used, time.monotonic() - began
        times = np.concatenate(taken)
        p50, p99 = np.percentile(times[np.isfinite(times)], [50, 99])
        result = {
            "p50": p50,
            "p99": p99,
            "values": len(times),
            "frames": reader.frames - frames,
            "cores": used / lasted,
        }
        print(json.dumps(result), flush=True)
        await reader.close()


# The parent


class Child:
    """A process that is spoken to by lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.pid = process.pid

    async def line(self) -> str:
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode().strip()

    def say(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")


@asynccontextmanager
async def child(*arguments: str) -> AsyncIterator[Child]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", *arguments, stdin=pipe, stdout=pipe)
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def collecting(nats: NatsServer, count: int, interval: str, *, stamps: bool = False) -> AsyncIterator[Child]:
    """A collector that scrapes so many endpoints, warm. It `stamps` the pages that it has read."""
    me = "tests.benchmarks.bench_collector"
    flags = [f"--nats-url={nats.url}", "--id=bench", "--admin-host=127.0.0.1", f"--admin-port={free_port()}"]
    async with AsyncExitStack() as stack:
        pages = await stack.enter_async_context(child(me, "serve-pages"))
        port = int(await pages.line())
        bus = await stack.enter_async_context(Bus(nats.url, name="owner"))
        await bus.wait_connected(5.0)
        bucket = FrameBucket(bus, SUBJECTS)
        await bucket.start()
        stack.push_async_callback(bucket.close)
        publisher = FactPublisher(bus, SUBJECTS, "owner")
        owning: asyncio.Task[None] = asyncio.create_task(publisher.run())
        facts: dict[str, Fact] = {fact_key(POOL, endpoint): endpoint for endpoint in endpoints(count, port)}
        publisher.update(facts, [POOL])
        await eventually(lambda: publisher.published, lambda: publisher)
        program = (me, "collect") if stamps else ("pointsman", "collector")
        collector = [*program, *flags, f"--interval={interval}", "--log-level=error"]
        yielded = await stack.enter_async_context(child(*collector))
        await asyncio.sleep(4.0)
        try:
            yield yielded
        finally:
            owning.cancel()
            await asyncio.wait([owning])


async def measure_reader(nats: NatsServer, readers: int, count: int, seconds: float) -> list[dict[str, float]]:
    """What each of so many readers measured."""
    async with AsyncExitStack() as stack:
        me = ["tests.benchmarks.bench_collector", "read-frames", nats.url, str(count)]
        children = [await stack.enter_async_context(child(*me)) for _ in range(readers)]
        for child in children:
            assert await child.line() == "ready"
        await asyncio.sleep(0.5)
        for child in children:
            child.say()
        await asyncio.sleep(seconds)
        for child in children:
            child.say()
        return [json.loads(await child.line()) for child in children]


async def measure_cores(nats: NatsServer, count: int = 100, interval: float = 0.05, seconds: float = 10.0) -> None:
    async with collecting(nats, count, f"{interval}s") as collector:
        loop = min(_seconds(reference) for _ in range(200))
        used, server, began = _cpu(collector.pid), _cpu(nats.pid), time.monotonic()
        (reader,) = await measure_reader(nats, 1, count, seconds)
        lasted = time.monotonic() - began
        cores, server = (_cpu(collector.pid) - used) / lasted, (_cpu(nats.pid) - server) / lasted
        wanted, pages = count / interval, reader["values"] / seconds
        each = cores / wanted
        print(f"{count} endpoints every {interval * 1000:.0f} ms, every page another")
        print(f"  pages published   {pages:8.0f}/s   (of {wanted:.0f})")
        print(f"  collector         {cores:8.3f} cores   {held(cores, 0.35)}")
        print(f"  a page            {each * 1000:8.3f} ms CPU, {each / loop:.2f} x loop   {held(each * 1000, 0.15)}")
        print(f"  frames            {reader['frames'] / seconds:8.0f}/s")
        print(f"  nats-server       {server:8.3f} cores")
        print(f"  a reader          {reader['cores']:8.3f} cores")


async def measure_visible(
    nats: NatsServer, interval: str, count: int = 100, seconds: float = 5.0, *, stamps: bool = False
) -> None:
    since, most = ("the collector's reading", 3) if stamps else ("the server's writing", 10)
    print(f"{count} endpoints every {interval}, from {since} of the page to the reader's column")
    async with collecting(nats, count, interval, stamps=stamps):
        for readers in (1, 2, 4):
            results = await measure_reader(nats, readers, count, seconds)
            p50, p99 = max(result["p50"] for result in results), max(result["p99"] for result in results)
            values = min(result["values"] for result in results)
            figures = f"p50 {p50 * 1000:.2f} ms, p99 {p99 * 1000:.2f} ms {held(p99 * 1000, most, ' ms')}"
            print(f"  {readers} readers: {figures} in the slowest, of {values:.0f} values")


async def measure_memory(nats: NatsServer, count: int = 1000, seconds: int = 60) -> None:
    async with collecting(nats, count, "1s") as collector:
        loop = min(_seconds(reference) for _ in range(200))
        used, began = _cpu(collector.pid), time.monotonic()
        print(f"{count} endpoints every 1 s")
        for step in range(seconds // 10):
            await asyncio.sleep(10.0)
            print(f"  after {10 * (step + 1):3} s   {_resident(collector.pid) / 2**20:8.1f} MiB resident")
        cores = (_cpu(collector.pid) - used) / (time.monotonic() - began)
        each = cores / count
        print(f"  collector    {cores:8.3f} cores")
        print(f"  a page       {each * 1000:8.3f} ms CPU, {each / loop:.2f} x loop")


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _cpu(pid: int) -> float:
    """CPU seconds that a process has used (proc(5), fields utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _resident(pid: int) -> int:
    """Bytes of resident memory (proc(5), statm)."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE_SIZE


async def main(parts: set[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with nats_server(Path(directory)) as nats:
            if "cores" in parts:
                await measure_cores(nats)
            if "visible" in parts:
                await measure_visible(nats, "100ms")
                await measure_visible(nats, "50ms")
                await measure_visible(nats, "100ms", stamps=True)
                await measure_visible(nats, "50ms", stamps=True)
            if "memory" in parts:
                await measure_memory(nats)


if __name__ == "__main__":
    logs.configure("error", "console")
    match sys.argv[1:]:
        case ["serve-pages"]:
            uvloop.run(serve_pages(real_size_page()))
        case ["collect", *arguments]:
            sys.exit(collect(arguments))
        case ["read-frames", url, count]:
            uvloop.run(read_frames(url, int(count)))
        case wanted:
            asyncio.run(main(set(wanted) or {"cores", "visible", "memory"}))
