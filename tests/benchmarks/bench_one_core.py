"""How long requests take when picker, collector and nats-server share one core.

    .venv/bin/python -m tests.benchmarks.bench_one_core [--transport http2] [--seconds 10] [--rate 1000]

The collector scrapes 100 endpoints every 50 ms: vLLM's recorded page of 50 kB where POINTSMAN_FIXTURES names it, else a
simulator's, under 50 loads in turn. Meanwhile requests of 1 kB come at random moments (Poisson), whether those before
have been answered or not; each is a conversation of four messages. The server of the pages and the proxy are this
process, on the other core.

Printed are p50 and p99 of the times from sending a request's body to the answer, and from the beginning of its stream,
and the cores that each process took. The times include how long this process was busy with something else.
"""

import argparse
import asyncio
import itertools
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import uvloop

from pointsman.local.process import Process
from services.picker.transport.grpc_server import Transport
from shared.service import logs
from tests.benchmarks.bench_scrape import held, real_size_page, with_loads
from tests.benchmarks.http2_client import Http2Client
from tests.benchmarks.live_pool import MEASURED, TRANSPORTS, LivePool, cpu, endpoints, percentiles
from tests.benchmarks.talk import BODY, plain
from tests.nats import NatsServer

ENDPOINTS = 100
INTERVAL = 0.05
WARM = 3.0
"""Seconds."""
MAX_OPEN = 5_000
"""Requests that are under way at most: a picker that can't keep up is left alone."""
P50, P99 = 3.0, 15.0
"""Targets, in ms."""


class PageServer(asyncio.Protocol):
    """Answers every request with the next page, which is ready to be sent."""

    served = 0

    def __init__(self, answers: "itertools.cycle[bytes]") -> None:
        self._answers = answers
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        PageServer.served += 1
        self._transport.write(next(self._answers))


async def ask(client: Http2Client, rate: float, seconds: float) -> int:
    """Begin conversations at random moments; how many were left out because too many were open."""
    random, due, left_out = Random(7), time.monotonic(), 0
    end = due + seconds
    while due < end:
        await asyncio.sleep(max(due - time.monotonic(), 0.0))
        while due <= time.monotonic():
            if client.started - client.ended < MAX_OPEN:
                client.start()
            else:
                left_out += 1
            due += random.expovariate(rate)
    await client.until(lambda: client.ended == client.started)
    return left_out


async def measure(transport: Transport, pages: Sequence[bytes], rate: float, seconds: float) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\n\r\n"
    answers = itertools.cycle([head % len(page) + page for page in pages])
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: PageServer(answers), "0.0.0.0", 0, backlog=4096)
    places = endpoints(ENDPOINTS, "127.1", server.sockets[0].getsockname()[1])
    async with LivePool(places, frames=False, nats_core=MEASURED) as pool:
        collector = await pool.collector({"interval": f"{INTERVAL * 1000:.0f}ms"})
        picker = await pool.picker(transport)
        async with Http2Client(picker.address.port, plain(), timed=BODY, strict=False) as client:
            await ask(client, rate, WARM)
            client.times.clear()
            processes: dict[str, Process | NatsServer] = {
                "picker": picker,
                "collector": collector,
                "nats-server": pool.nats,
            }
            before = {name: cpu(process) for name, process in processes.items()}
            began, own, served = time.monotonic(), time.process_time(), PageServer.served
            left_out = await ask(client, rate, seconds)
            lasted = time.monotonic() - began
            served, own = PageServer.served - served, time.process_time() - own
            cores = {name: (cpu(process) - before[name]) / lasted for name, process in processes.items()}
        whole, body = ([values[which] for values in client.times] for which in (0, 1))
    server.close()
    cores["this process"] = own / lasted
    print(f"{transport}: {len(client.times) / lasted:.0f} requests/s (of {rate:.0f}", end="")
    print(
        f"; {left_out} left out, {client.cut} cut off), {served / lasted:.0f} pages/s (of {ENDPOINTS / INTERVAL:.0f})"
    )
    p50, p99 = percentiles(body)
    print(
        f"  body to answer: p50 {p50:.2f} ms {held(p50, P50, ' ms')}, p99 {p99:.2f} ms {held(p99, P99, ' ms')}", end=""
    )
    print(
        ", at most {:.1f} ms; from the headers: p50 {:.2f}, p99 {:.2f} ms".format(max(body) * 1e3, *percentiles(whole))
    )
    print("  cores: " + ", ".join(f"{name} {share:.2f}" for name, share in cores.items()), flush=True)


def main(arguments: argparse.Namespace) -> None:
    pages = with_loads(real_size_page())
    uvloop.run(measure(arguments.transport, pages, arguments.rate, arguments.seconds))


if __name__ == "__main__":
    logs.configure("error", "console")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", choices=TRANSPORTS, default=TRANSPORTS[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=1_000.0, help="requests a second")
    main(parser.parse_args())
