"""CPU of a scrape of a real-size page: GET over loopback, scan, extraction; and the scan beside a whole-page parser.

    .venv/bin/python tests/benchmarks/bench_scrape.py

The page is the recorded one of vLLM 0.32 (50 kB, 620 lines) where POINTSMAN_FIXTURES names it, else a simulated vLLM's
of that size. The server is a process of its own, so that only the collector's CPU counts. Each figure is the best of
several rounds, which is what the machine can do when nothing else runs. Takes about five seconds.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.http import Client
from services.collector.scan import scan
from services.collector.selection import Newest
from services.collector.sources.metrics import MetricsSource
from shared.attributes import AttributeMap
from shared.model import Endpoint

ROUNDS = 8
SCRAPES = 500
PAGE_BYTES = 50_000

SERVER = """
import asyncio, sys, uvloop
page = sys.stdin.buffer.read()
head = b"HTTP/1.1 200 OK\\r\\nContent-Type: text/plain; version=0.0.4\\r\\nContent-Length: %d\\r\\n\\r\\n"
answer = head % len(page) + page
class Server(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(answer)
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


async def best(work: Callable[[], Awaitable[None]], times: int) -> float:
    """Milliseconds of CPU that one turn of the work takes, in the best round."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(times):
            await work()
        rounds.append((time.process_time() - began) / times * 1000)
    return min(rounds)


async def measure(page: bytes, port: int) -> None:
    client, source, attributes = Client(5.0, 16 * 2**20), MetricsSource("metrics"), AttributeMap()
    endpoint = Endpoint(id="default/a", name="a", address="127.0.0.1", port=port)
    bindings = [CoreMetricsExtractor("core").bind(endpoint)]
    url = URL(source.url(endpoint), encoded=True)
    await client.open()

    async def get() -> None:
        await client.get(url, source.tls)

    async def read() -> None:
        await source.read(page, bindings)
        for binding in bindings:
            binding.store(attributes, 0.0)

    async def scrape() -> None:
        got = await client.get(url, source.tls)
        await source.read(got, bindings)
        for binding in bindings:
            binding.store(attributes, 0.0)

    selectors = [Newest(spec) for one in bindings for spec in one.engine.queued + one.engine.running]
    selectors += [Newest(spec) for spec in bindings[0].engine.kv_usage[:1] + bindings[0].engine.lora]
    selectors += [Newest(spec) for spec in bindings[0].engine.cache_info]
    wanted = {selector.name: [selector] for selector in selectors}

    async def only_scan() -> None:
        scan(page, wanted)

    async def parse() -> None:
        for _ in text_string_to_metric_families(page.decode()):
            pass

    await best(get, 50)
    parsing, scanning = await best(parse, 5), await best(only_scan, SCRAPES)
    reading, getting, whole = await best(read, SCRAPES), await best(get, SCRAPES), await best(scrape, SCRAPES)
    await client.close()
    print(f"page                              {len(page):8} bytes, {len(page.splitlines())} lines")
    print(f"prometheus_client.parser          {parsing:8.3f} ms CPU")
    print(f"scan                              {scanning:8.3f} ms CPU   ({parsing / scanning:.0f} times less)")
    print(f"scan and extraction               {reading:8.3f} ms CPU")
    print(f"GET                               {getting:8.3f} ms CPU")
    print(f"scrape: GET, scan, extraction     {whole:8.3f} ms CPU   (target: 0.15)")


def main() -> None:
    page = real_size_page()
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            server.stdin.write(page)
            server.stdin.close()
            uvloop.run(measure(page, int(server.stdout.readline())))
        finally:
            server.kill()


if __name__ == "__main__":
    main()
