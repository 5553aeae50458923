"""CPU of a scrape of a real-size page: GET over loopback, reading, extraction; and that beside a whole-page parser.

    .venv/bin/python -m tests.benchmarks.bench_scrape

The page is the recorded one of vLLM 0.32 (50 kB, 620 lines) where POINTSMAN_FIXTURES names it, else a simulated vLLM's
of that size. Its load changes from scrape to scrape, so that what is read has to be parsed each time; and so does the
place of everything below, as numbers get longer and shorter. The server is a process of its own, so that only the
collector's CPU counts. Each figure is the best of several rounds, which is what the machine can do when nothing else
runs; beside it stands how many times a fixed loop of plain Python it is, and how many times less than the parser, both
timed in the same run. Takes about five seconds.
"""

import asyncio
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import uvloop
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.http.client import Client
from services.collector.page.scan import scan
from services.collector.sources.metrics import MetricsSource
from shared.attributes import AttributeMap
from shared.model import Endpoint
from tests.benchmarks.bench_conversation import reference, seconds

ROUNDS = 8
SCRAPES = 500
PAGE_BYTES = 50_000
PAGES = 50
"""Pages with different loads, one after another."""
INTERVAL = 0.05
"""Seconds between two scrapes, as far as the reader knows."""

SERVER = """
import asyncio, itertools, sys, uvloop
head = b"HTTP/1.1 200 OK\\r\\nContent-Type: text/plain; version=0.0.4\\r\\nContent-Length: %d\\r\\n\\r\\n"
answers = itertools.cycle([head % len(page) + page for page in sys.stdin.buffer.read().split(b"\\0")])
class Server(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(next(answers))
async def main():
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
uvloop.run(main())
"""


def real_size_page() -> bytes:
    fixtures = os.environ.get("POINTSMAN_FIXTURES")
    if fixtures:
        return Path(fixtures, "vllm-0.32-idle.prom").read_bytes()
    from services.simulator.app import Simulator
    from services.simulator.settings import SimulatorSettings

    async def render() -> bytes:
        return Simulator(SimulatorSettings(port=0, page_bytes=PAGE_BYTES)).server.metrics()

    return asyncio.run(render())


def with_loads(page: bytes) -> list[bytes]:
    """The page under loads that differ."""
    pages = []
    for load in range(PAGES):
        numbers = {b"running": load % 7 * 3, b"waiting": load * 9 % 130, b"usage_perc": load * 37 % 100 / 100}
        changed = page
        for end, number in numbers.items():
            changed = re.sub(rb"(?m)^(vllm:\w+_%s\{.*\}) \S+$" % end, rb"\1 %s" % repr(float(number)).encode(), changed)
        pages.append(changed)
    return pages


async def best(work: Callable[[], Awaitable[None]], times: int) -> float:
    """Milliseconds of CPU that one turn of the work takes, in the best round."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(times):
            await work()
        rounds.append((time.process_time() - began) / times * 1000)
    return min(rounds)


async def measure(pages: Sequence[bytes], port: int) -> None:
    client, source, attributes = Client(5.0, 16 * 2**20), MetricsSource("metrics"), AttributeMap()
    endpoint = Endpoint(id="default/a", name="a", address="127.0.0.1", port=port)
    binding = CoreMetricsExtractor("core").bind(endpoint)
    reader = source.reader([binding])
    url = URL(source.url(endpoint), encoded=True)
    changing, moments = itertools.cycle(pages), itertools.count()

    async def get() -> None:
        await client.get(url, source.tls)

    async def read(page: bytes) -> None:
        at = next(moments) * INTERVAL
        await reader.read(page, at)
        binding.store(attributes, at)

    async def read_changing() -> None:
        await read(next(changing))

    async def read_equal() -> None:
        await read(pages[0])

    async def read_first() -> None:
        await source.reader([binding]).read(pages[0], 0.0)
        binding.store(attributes, 0.0)

    async def scrape() -> None:
        await read(await client.get(url, source.tls))

    await read(pages[0])
    names = [str(choice).split(" or ")[0].encode() for choice in binding.fallbacks]

    async def only_scan() -> None:
        for name in names:
            scan(pages[0], name, ())

    async def parse() -> None:
        for _ in text_string_to_metric_families(pages[0].decode()):
            pass

    await best(get, 50)
    parsing, scanning, first = await best(parse, 5), await best(only_scan, SCRAPES), await best(read_first, SCRAPES)
    changed, equal = await best(read_changing, SCRAPES), await best(read_equal, SCRAPES)
    getting, whole = await best(get, SCRAPES), await best(scrape, SCRAPES)
    await client.close()
    loop = seconds(reference) * 1000

    def show(what: str, took: float, target: float | None = None) -> None:
        ratios = f"{took / loop:6.2f} x loop, parser / {parsing / took:5.1f}"
        print(f"{what:39} {took:8.3f} ms CPU   {ratios}{'' if target is None else f'   {held(took, target)}'}")

    print(f"page                                    {len(pages[0]):8} bytes, {len(pages[0].splitlines())} lines")
    show("the fixed loop", loop)
    show("prometheus_client.parser", parsing)
    show(f"scan of the whole page, {len(names)} names", scanning)
    show("reading and extraction, first page", first)
    show("reading and extraction, changed values", changed, 0.03)
    show("reading and extraction, equal values", equal)
    show("GET", getting)
    show("scrape: GET, reading, extraction", whole, 0.15)


def held(figure: float, target: float, unit: str = "") -> str:
    """What a figure should not be above, and whether it is."""
    return f"(target: {target:g}{unit}{', missed' if figure > target else ''})"


def main() -> None:
    pages = with_loads(real_size_page())
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            server.stdin.write(b"\0".join(pages))
            server.stdin.close()
            uvloop.run(measure(pages, int(server.stdout.readline())))
        finally:
            server.kill()


if __name__ == "__main__":
    main()
