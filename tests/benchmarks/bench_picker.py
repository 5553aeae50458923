"""Whole conversations through a picker process on one core, with both transports.

    .venv/bin/python -m tests.benchmarks.bench_picker [--seconds 1] [--rounds 3] [--only "1 kB"] …

It starts two pickers as they are installed (`pointsman picker`, docs/profiles/weighted-sum.yaml, metrics on), one with
each transport, on one core. The clients, nats-server and this process, which publishes the facts and 20 frames a second
of all endpoints, have the other. What counts is the CPU time that a picker's process takes for a conversation, with all
that it does beside; the best of rounds in which the transports take turns.

Two clients ask, 16 conversations at a time on one connection. `turns` says what comes next when the last message has
been answered, as Envoy does; prompts differ (`tests.benchmarks.talk`). `h2load` (Debian's nghttp2-client; left out
where it is missing) sends all messages of a conversation at once, always the same ones. Conversations/s are those that
the client had, with `turns`; *without transport* is the picker's own work from bytes to bytes, in this process. All
figures depend on the processor's speed at that moment: the last line is a fixed loop of plain Python in the same run.

Takes four minutes.
"""

import argparse
import asyncio
import re
import shutil
import struct
import time
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from pathlib import Path

import numpy as np
import uvloop
from msgspec import Struct
from prometheus_client import CollectorRegistry

from pointsman.local.services import Picker
from services.picker.admin.decisions import DecisionRing
from services.picker.admin.metrics import PickerMetrics
from services.picker.extproc.events import Limits
from services.picker.pipeline import build
from services.picker.request_handler import RequestHandler
from services.picker.state.view import View
from services.picker.transport.ext_proc import METHOD
from services.picker.transport.grpc_server import Transport
from shared.bus.messages import Frame
from shared.config import load
from shared.plugin import Registry
from shared.service import logs
from tests.benchmarks.bench_conversation import reference, seconds
from tests.benchmarks.bench_decide import WEIGHTED_SUM
from tests.benchmarks.http2_client import Http2Client
from tests.benchmarks.live_pool import RENAMED, TRANSPORTS, LivePool, cpu, endpoints, facts, frame
from tests.benchmarks.talk import Talk, lean, observed, plain, restored, unread

HEADERS = {"content-type": "application/grpc", "te": "trailers"}


class Case(Struct, frozen=True):
    """Conversations, and the picker that has them."""

    title: str
    talk: Callable[[], Talk]
    endpoints: int = 100
    rewrite: bool = False
    flags: Mapping[str, str] = {}


CASES = (
    Case("4 messages, 1 kB, 8 endpoints", plain, 8),
    Case("4 messages, 1 kB, 100 endpoints", plain),
    Case("4 messages, 1 kB, 1 000 endpoints", plain, 1_000),
    Case("4 messages, 220 kB", partial(plain, 220_000)),
    Case("200 chunks, lean", lean, flags={"observe-responses": "0"}),
    Case("200 chunks, unread", unread),
    Case("200 chunks, observed", observed),
    Case("200 chunks, usage and model name", partial(restored, RENAMED.encode()), rewrite=True),
)


def handler(case: Case) -> RequestHandler:
    """A picker without a bus and transports, whose view doesn't change."""
    view, random, pool = View(), np.random.default_rng(7), endpoints(case.endpoints)
    view.reset(facts(pool, rewrite=case.rewrite))
    content = frame(pool, random)
    made = Frame(sender="bench", sent=0.0, sequence=1, ids=content.ids, columns=content.columns, ages=content.ages)
    view.apply_frame(made, time.monotonic() + 3600, 0.0)  # stays fresh while the benchmark runs
    metrics = PickerMetrics(CollectorRegistry(), view)
    pipeline = build(load(WEIGHTED_SUM.read_text(), Registry.installed()), random, time.time, metrics.plugins.observe)
    return RequestHandler(
        view,
        pipeline,
        DecisionRing(1_000),
        metrics,
        limits=Limits(),
        make_id=lambda: "made",
        clock=time.monotonic,
        observe=lambda: case.flags.get("observe-responses") != "0",
    )


def without_transport(case: Case, rounds: int) -> float:
    """CPU seconds of one conversation, the best of several rounds."""
    own, talk, number = handler(case), case.talk(), 0

    def one() -> None:
        nonlocal number
        number += 1
        talk.without_transport(own, number)

    return min(seconds(one) for _ in range(rounds))


class Figures(Struct):
    """The best of the rounds."""

    turns: float = inf
    """CPU seconds of a conversation."""
    per_second: float = 0.0
    h2load: float = inf


async def h2load(port: int, messages: list[bytes], count: int, at_a_time: int, directory: Path) -> None:
    """Have so many conversations."""
    data = directory / "conversation"
    data.write_bytes(b"".join(struct.pack(">BL", 0, len(message)) + message for message in messages))
    headers = [word for name, value in HEADERS.items() for word in ("-H", f"{name}: {value}")]
    command = ["h2load", "-c1", f"-m{at_a_time}", f"-n{count}", "-d", str(data), *headers]
    process = await asyncio.create_subprocess_exec(
        *command, f"http://127.0.0.1:{port}{METHOD}", stdout=asyncio.subprocess.PIPE
    )
    output = (await process.communicate())[0].decode()
    assert re.search(rf"\b{count} succeeded", output), output


async def measure(case: Case, length: float, rounds: int, at_a_time: int) -> dict[Transport, Figures]:
    """By transport."""
    found = {transport: Figures() for transport in TRANSPORTS}
    async with LivePool(endpoints(case.endpoints), rewrite=case.rewrite) as pool:
        pickers = {transport: await pool.picker(transport, case.flags) for transport in TRANSPORTS}
        for turn in range(rounds + 1):
            for transport, picker in pickers.items():
                figures = found[transport] if turn else Figures()  # the first round warms up
                await _measure(case, picker, figures, length, at_a_time, pool.directory)
    return found


async def _measure(
    case: Case, picker: Picker, figures: Figures, length: float, at_a_time: int, directory: Path
) -> None:
    talk = case.talk()
    async with Http2Client(picker.address.port, talk) as client:
        used, began = cpu(picker), time.monotonic()
        count = await client.converse(length, at_a_time)
        per_second = count / (time.monotonic() - began)
        figures.turns = min(figures.turns, (cpu(picker) - used) / count)
        figures.per_second = max(figures.per_second, per_second)
    if shutil.which("h2load"):
        count, used = max(round(per_second * length), at_a_time), cpu(picker)
        await h2load(picker.address.port, talk.messages(b"10.1.100.100:8000"), count, at_a_time, directory)
        figures.h2load = min(figures.h2load, (cpu(picker) - used) / count)


def main(arguments: argparse.Namespace) -> None:
    print(f"{'ms of CPU a conversation':34}{'turns':>16}{'h2load':>26}{'without':>20}{'conversations/s':>20}")
    names = f"{'http2':>8}{'grpcio':>8}"
    print(f"{'':34}{names}{'ratio':>8}  {names}{'ratio':>8}  {'transport':>10}{names:>20}")
    for case in CASES:
        if arguments.only not in case.title:
            continue
        found = uvloop.run(measure(case, arguments.seconds, arguments.rounds, arguments.at_a_time))
        ours, grpcio = (found[transport] for transport in TRANSPORTS)
        row = f"{case.title:34}"
        for our, their in ((ours.turns, grpcio.turns), (ours.h2load, grpcio.h2load)):
            row += f"{our * 1e3:8.3f}{their * 1e3:8.2f}{their / our:8.1f}  " if our < inf else " " * 26
        row += f"{without_transport(case, arguments.rounds) * 1e3:10.3f}"
        print(f"{row}{ours.per_second:12.0f}{grpcio.per_second:8.0f}", flush=True)
    print(f"the loop of plain Python {min(seconds(reference) for _ in range(5)) * 1e3:.4f} ms")


if __name__ == "__main__":
    logs.configure("error", "console")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-a-time", type=int, default=16, help="conversations on the connection")
    parser.add_argument("--only", default="", help="the rows with this in their title")
    main(parser.parse_args())
