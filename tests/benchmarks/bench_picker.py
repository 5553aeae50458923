"""Whole conversations through a picker's gRPC server on one core, with the built-in default configuration.

    .venv/bin/python -m tests.benchmarks.bench_picker

A child process serves ext_proc with a view of 8, 100 and 1 000 endpoints; this process drives it over loopback with 16
conversations at a time, four messages each (headers, 1 kB body, response headers, trailers). What counts is the CPU
time that the child used: conversations/s per core is its reciprocal, and doesn't depend on how fast the client is. The
same without a server (conversation, decision and bookkeeping from bytes to bytes) is measured beside it in the same
run: the rest is grpcio's. The last row's conversations have a response of 200 chunks that is observed.
"""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import grpc.aio
import numpy as np
import uvloop
from prometheus_client import CollectorRegistry

from services.picker.admin.decisions import DecisionRing
from services.picker.admin.metrics import PickerMetrics
from services.picker.extproc.events import Limits
from services.picker.pipeline import build
from services.picker.request_handler import RequestHandler
from services.picker.request_stream import RequestStream
from services.picker.state.view import View
from services.picker.transport.ext_proc import SERVICE
from services.picker.transport.grpc_server import Transport
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from shared.bus.columns import pack_ages, pack_floats
from shared.bus.messages import Frame
from shared.config import load
from shared.model import Endpoint
from shared.plugin import Registry
from shared.service import logs
from tests.benchmarks.bench_conversation import lean, observed
from tests.ext_proc_server import ExtProcServer

ENDPOINTS = (8, 100, 1_000)
AT_A_TIME = 16
CONVERSATIONS = 1_600
CHUNKS = 200
OBSERVED = 160
"""Conversations whose responses are observed."""
METHOD = f"/{SERVICE}/Process"
TICK = os.sysconf("SC_CLK_TCK")


def handler(endpoints: int) -> RequestHandler:
    """A picker without a bus: a view of so many endpoints, each with fresh metrics."""
    view = View()
    view.reset({f"pool.endpoint.{one}": _endpoint(one) for one in range(endpoints)})
    random = np.random.default_rng(7)
    values = {WAITING_QUEUE_SIZE: random.integers(0, 20, endpoints), KV_CACHE_USAGE: random.random(endpoints)}
    frame = Frame(
        sender="bench",
        sent=0.0,
        sequence=1,
        ids=tuple(one.id for one in view.layout.endpoints),
        columns={key.wire: pack_floats(column) for key, column in values.items()},
        ages={key.wire: pack_ages(np.zeros(endpoints)) for key in values},
    )
    view.apply_frame(frame, time.monotonic() + 3600, 0.0)  # stays fresh while the benchmark runs
    metrics = PickerMetrics(CollectorRegistry(), view)
    pipeline = build(load("", Registry.installed()), random, time.time, metrics.plugin)
    ring = DecisionRing(1_000)
    return RequestHandler(view, pipeline, ring, metrics, limits=Limits(), make_id=lambda: "made", clock=time.monotonic)


def _endpoint(number: int) -> Endpoint:
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    return Endpoint(id=f"default/model-{number}", name=f"model-{number}", address=address, port=8000)


def without_server(endpoints: int, messages: Sequence[bytes], count: int = 200) -> float:
    """CPU seconds of one conversation from bytes to bytes, without gRPC: the best of several rounds."""
    own = handler(endpoints)
    best = float("inf")
    for _ in range(5):
        started = time.process_time()
        for _ in range(count):
            stream = RequestStream(own)
            for message in messages:
                stream.receive(message)
            stream.end()
        best = min(best, (time.process_time() - started) / count)
    return best


async def serve(endpoints: int, transport: Transport) -> None:
    """The child: serve until standard input closes."""
    server = ExtProcServer(partial(RequestStream, handler(endpoints)), port=0, registry=CollectorRegistry())
    await server.start()
    print(server.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0.0)


async def drive(port: int, pid: int, messages: Sequence[bytes], conversations: int) -> tuple[float, float]:
    """(CPU seconds of the server, wall seconds), each per conversation."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.stream_stream  # grpc-stubs is older than serializers that may be left out

        async def converse(count: int) -> None:
            for _ in range(count):
                stream = call(METHOD)()
                for message in messages:
                    await stream.write(message)
                    await stream.read()
                await stream.done_writing()
                await stream.read()

        await converse(conversations // AT_A_TIME)  # warm
        used, started = _cpu(pid), time.monotonic()
        await asyncio.gather(*(converse(conversations // AT_A_TIME) for _ in range(AT_A_TIME)))
        return (_cpu(pid) - used) / conversations, (time.monotonic() - started) / conversations


async def measure(endpoints: int, messages: Sequence[bytes], conversations: int = CONVERSATIONS) -> tuple[float, float]:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.benchmarks.bench_picker",
        str(endpoints),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        return await drive(int(await child.stdout.readline()), child.pid, messages, conversations)
    finally:
        child.stdin.close()
        await child.wait()


def _cpu(pid: int) -> float:
    """CPU seconds that a process has used (proc(5), fields utime and stime)."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def main() -> None:
    print(
        f"{'endpoints':>9}  {'conversations/s per core':>24}  {'CPU each':>9}  {'without gRPC':>12}  {'wall each':>9}"
    )
    plain = [(endpoints, lean(1_000), CONVERSATIONS) for endpoints in ENDPOINTS]
    for endpoints, messages, conversations in [*plain, (100, observed(1_000, CHUNKS), OBSERVED)]:
        cpu, wall = asyncio.run(measure(endpoints, messages, conversations))
        bare = without_server(endpoints, messages, conversations // 8)
        row = f"{endpoints:>9}  {1 / cpu:>24.0f}  {cpu * 1e3:>6.3f} ms  {bare * 1e3:>9.3f} ms  {wall * 1e3:>6.3f} ms"
        print(row)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        logs.configure("error", "console")
        uvloop.run(serve(int(sys.argv[1]), cast(Transport, sys.argv[2])))
    else:
        main()
