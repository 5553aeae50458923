"""The latency that a picker adds to requests through Envoy, with both transports.

    .venv/bin/python -m tests.benchmarks.bench_envoy_latency [--seconds 4] [--rounds 3]

Envoy runs with deploy/envoy/standalone.yaml as the demo starts it, once for each transport's picker (its default
configuration, eight endpoints, a live view), and once without the ext_proc filter. The pickers have one core. Envoy has
the other with this process, which is the client and a model server that answers at once. Requests of 1 kB come at
random moments (Poisson) on up to 64 connections. Their time counts from the moment at which they were due.

The rates are half of what comes through each Envoy when all connections ask without a pause: with `http2` Envoy's core
is what is busy then, with `grpcio` the picker's. Each row shows p50 and p99 in ms, without the filter and with it, and
what the filter adds: the best of rounds that take turns; and the share of its core that the picker took.
"""

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from math import inf
from pathlib import Path

import uvloop
import yaml

from pointsman.local.envoy import STANDALONE, Envoy, EnvoyPlaces, load
from pointsman.local.services import Picker
from services.watcher.eds import EdsFile, render
from shared.service import logs
from tests.benchmarks.http1_load import Http1Load, Upstream
from tests.benchmarks.live_pool import OTHERS, TRANSPORTS, LivePool, cpu, endpoints, percentiles
from tests.waiting import eventually

ENDPOINTS = 8
CONNECTIONS = 64


def without_ext_proc(directory: Path) -> Path:
    """The configuration without the filter: Envoy chooses the endpoints in turn."""
    document = load(STANDALONE)
    for listener in document["static_resources"]["listeners"]:
        for chain in listener["filter_chains"]:
            configured = chain["filters"][0]["typed_config"]
            filters = configured["http_filters"]
            configured["http_filters"] = [
                filter for filter in filters if filter["name"] != "envoy.filters.http.ext_proc"
            ]
    path = directory / "without.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


async def picks(picker: Picker) -> int:
    """How many requests it has decided."""
    return sum(endpoint["picks"] for endpoint in (await picker.state())["endpoints"])


class Measurement:
    """Envoys with pickers and without, and the loads of each."""

    def __init__(self, pool: LivePool, stack: AsyncExitStack) -> None:
        self._pool, self._stack = pool, stack

    async def load(self, name: str, picker: Picker | None = None) -> Http1Load:
        """An Envoy of its own, and its clients. With a picker, once Envoy asks it."""
        take, directory = self._pool.ports.take, self._pool.directory
        places = EnvoyPlaces(
            port=take(f"Envoy of {name}"),
            admin_port=take(f"admin of Envoy of {name}"),
            stats_port=take(f"statistics of Envoy of {name}"),
            pickers=() if picker is None else (picker.address,),
            eds_file=directory / "eds.json",
            picker_tls=False,
        )
        configuration = without_ext_proc(directory) if picker is None else STANDALONE
        await self._pool.run(Envoy(directory, configuration, places, name=f"envoy-{name}"), OTHERS)
        made = await self._stack.enter_async_context(Http1Load(places.port, CONNECTIONS))

        async def asked() -> bool:
            await made.most(0.1)
            return picker is None or await picks(picker) > 0

        await eventually(asked, f"{name} is asked")
        return made


async def best(load: Http1Load, rate: float, seconds: float, found: Sequence[float]) -> list[float]:
    """p50 and p99 at this rate, each the best so far."""
    return [min(pair) for pair in zip(found, percentiles(await load.steady(rate, seconds)), strict=True)]


async def compare(
    name: str, rate: float, plain: Http1Load, load: Http1Load, picker: Picker, arguments: argparse.Namespace
) -> None:
    """One row."""
    without = within = [inf] * 2
    used, asked, before = 0.0, 0, await picks(picker)
    for _ in range(arguments.rounds):
        without = await best(plain, rate, arguments.seconds, without)
        used -= cpu(picker)
        within = await best(load, rate, arguments.seconds, within)
        used += cpu(picker)
        asked += len(load.times)
    assert await picks(picker) - before >= asked, "Envoy asks the picker about every request"
    share = used / (arguments.seconds * arguments.rounds)
    added = [more - less for more, less in zip(within, without, strict=True)]
    pairs = "".join(f"{p50:9.2f}{p99:7.2f}" for p50, p99 in (without, within, added))
    print(f"{name:10}{rate:10.0f}{pairs}{share:14.0%}", flush=True)


async def measure(arguments: argparse.Namespace) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "0.0.0.0", 0, backlog=4096)
    places = endpoints(ENDPOINTS, "127.1", server.sockets[0].getsockname()[1])
    async with LivePool(places) as pool, AsyncExitStack() as stack:
        EdsFile(str(pool.directory / "eds.json")).write(render(places, "model-servers"))
        measurement = Measurement(pool, stack)
        plain = await measurement.load("none")
        pickers = {transport: await pool.picker(transport) for transport in TRANSPORTS}
        loads = {name: await measurement.load(name, picker) for name, picker in pickers.items()}
        most = {name: await load.most(arguments.seconds) for name, load in loads.items()}
        print("at most, requests/s: " + ", ".join(f"{name} {rate:.0f}" for name, rate in most.items()))
        print(f"{'':10}{'rate':>10}{'without':>16}{'with':>16}{'added':>16}{'picker':>14}")
        http2, grpcio = TRANSPORTS
        for name, rate in ((grpcio, most[grpcio]), (http2, most[grpcio]), (http2, most[http2])):
            await compare(name, rate / 2, plain, loads[name], pickers[name], arguments)
    server.close()


def main(arguments: argparse.Namespace) -> None:
    uvloop.run(measure(arguments))


if __name__ == "__main__":
    logs.configure("error", "console")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a round")
    parser.add_argument("--rounds", type=int, default=3)
    main(parser.parse_args())
