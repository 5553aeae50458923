"""The memory of open streams: requests that wait for their response.

    .venv/bin/python -m tests.benchmarks.bench_open_streams [--streams 10000]

For each transport it starts a picker as it is installed, with 100 endpoints, and opens the streams on ten connections.
Each sends its headers and a body of 1 kB, and is told its endpoint. When all are open their responses come, and they
end. That happens three times. Printed are the bytes by which the resident memory has grown in the first round, by
streams, and MiB: before; with all streams open, and after their end, in each round. Takes half a minute.
"""

import argparse
import asyncio
from functools import partial

import uvloop

from services.picker.transport.grpc_server import Transport
from shared.service import logs
from tests.benchmarks.bench_scrape import held
from tests.benchmarks.http2_client import Http2Client
from tests.benchmarks.live_pool import TRANSPORTS, LivePool, endpoints, resident
from tests.benchmarks.talk import Talk, plain

CONNECTIONS, AT_A_TIME = 10, 100
ROUNDS = 3
GOAL = 20_000
"""Bytes of a stream."""
SETTLE = 1.0
"""Seconds."""


async def begin(client: Http2Client, talk: Talk, count: int) -> None:
    """Open so many streams, some at a time."""
    talk.holds, talk.held, before = True, 0, client.started
    for number in range(1, count + 1):
        client.start()
        if number % AT_A_TIME == 0 or number == count:
            await client.until(lambda: talk.held == client.started - before)


async def end(client: Http2Client, talk: Talk) -> None:
    """Let all streams end, some at a time."""
    talk.holds = False
    streams = client.streams
    while streams:
        several, streams = streams[:AT_A_TIME], streams[AT_A_TIME:]
        for stream in several:
            stream.go_on()
        await client.until(partial(_open, client, len(streams)))


def _open(client: Http2Client, count: int) -> bool:
    return client.started - client.ended == count


async def measure(transport: Transport, count: int) -> None:
    talk = plain()
    async with LivePool(endpoints(100)) as pool:
        picker = await pool.picker(transport)
        async with Http2Client(picker.address.port, talk, connections=CONNECTIONS) as client:
            await client.converse(SETTLE, AT_A_TIME)  # warm up
            await asyncio.sleep(SETTLE)
            sizes = [resident(picker)]
            for _ in range(ROUNDS):
                await begin(client, talk, count)
                assert (await picker.state())["open_exchanges"] == count
                sizes.append(resident(picker))
                await end(client, talk)
                await asyncio.sleep(SETTLE)
                sizes.append(resident(picker))
    each = (sizes[1] - sizes[0]) / count
    shown = "".join(f"{size / 2**20:8.1f}" for size in sizes)
    print(f"{transport:10}{each:12.0f}{shown}   {held(each, GOAL, ' bytes')}", flush=True)


def main(arguments: argparse.Namespace) -> None:
    print(f"{arguments.streams} streams on {CONNECTIONS} connections")
    print(f"{'':10}{'bytes each':>12}{'before':>8}" + f"{'open':>8}{'ended':>8}" * ROUNDS + "   MiB")
    for transport in TRANSPORTS:
        uvloop.run(measure(transport, arguments.streams))


if __name__ == "__main__":
    logs.configure("error", "console")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=10_000)
    main(parser.parse_args())
