"""Where the CPU time of a conversation goes in a picker: its share by step, and by function.

    python -m tests.benchmarks.bench_steps [--case "200 chunks, unread"] [--seconds 20] [--functions 30]

A server process answers the conversations of one of `bench_picker`'s cases in turns, 16 at a time, on sockets and
uvloop. By default, these have four messages, 1 kB and 100 endpoints. The process has a picker's whole request path with
docs/profiles/weighted-sum.yaml, the load in flight, metrics and kept decisions, but no bus and no admin HTTP; its view
doesn't change. After each millisecond of its CPU time (or tick of the kernel, if that is longer), a signal records the
function under way (setitimer(2), ITIMER_PROF): the innermost whose file or name `STEPS` lists. What numpy, msgspec,
protobuf and xxhash do belongs to the function that calls them. Python handles signals between two instructions, so that
a system call counts for what follows: both sides of it are `event loop and sockets`.
"""

import argparse
import asyncio
import signal
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Self

import msgspec
import uvloop
from msgspec import Struct
from prometheus_client import CollectorRegistry

from services.picker.body_buffer import MemoryBudget
from services.picker.request_stream import RequestStream
from services.picker.settings.http2_options import Http2Options
from services.picker.transport.ext_proc import METHOD, ExtProc
from services.picker.transport.http2.server import Http2Server
from shared.service import logs
from tests.benchmarks.bench_picker import CASES, Case, handler
from tests.benchmarks.http2_client import Http2Client
from tests.benchmarks.live_pool import MEASURED, OTHERS, on_core

ROOT = Path(__file__).parents[2]
AT_A_TIME = 16
USUAL = "4 messages, 1 kB, 100 endpoints"
EVERY = 0.001
"""Seconds of CPU time between two samples, at least: kernels look at their ticks."""
WARM_UP = 1.0
"""Seconds."""
LOOP = "event loop and sockets"
STEPS = {
    LOOP: ("transport/http2/protocol.py", "transport/http2/server.py"),
    "HTTP/2": ("transport/http2/",),
    "gRPC method": ("transport/",),
    "reading protobuf": ("extproc/incoming.py", "extproc/headers.py", "extproc/wire.py"),
    "conversation, its answers": ("extproc/",),
    "reading the body": ("parsers/",),
    "prefix: hashes": ("state/prefix.py",),
    "prefix: look-up and placement": ("state/lru_prefix_index.py", "state/holders.py", "producers/approx_prefix.py"),
    "columns": ("state/columns.py", "state/number_table.py", "scheduling/cycle.py"),
    "scoring and picking": ("scheduling/",),
    "load in flight": ("state/inflight.py", "state/past_load.py", "producers/inflight_load.py"),
    "response": ("responses/",),
    "metrics": ("admin/metrics.py", "admin/request_metrics.py", "admin/model_labels.py", "state/histogram.py"),
    "record of the decision": ("decision.py", "admin/decisions.py", "director.py:_decision"),
    "director": ("director.py",),
    "between the steps": ("request_stream.py", "request_handler.py", "request_wait.py"),
}
"""The files below services/picker, and where it isn't all of a file, the function. The longest name counts."""
_PICKER = "/services/picker/"
_PLACES = sorted(
    ((place, step) for step, places in STEPS.items() for place in places), key=lambda place: -len(place[0])
)


class Profile(Struct):
    """What a server process has done."""

    seconds: float
    """Of CPU time."""
    samples: dict[str, int]
    """By function."""


def step_of(function: str) -> str:
    """The step to which a function belongs, or nothing."""
    return next((step for place, step in _PLACES if place in function), "")


def function_of(frame: FrameType | None, known: dict[CodeType, str]) -> str:
    """The innermost function that belongs to a step. `known` has functions by their code, empty without a step."""
    while frame is not None:
        code = frame.f_code
        function = known.get(code)
        if function is None:
            _, picker, path = code.co_filename.rpartition(_PICKER)
            function = f"{path}:{code.co_name}" if picker else ""
            function = known[code] = function if step_of(function) else ""
        if function:
            return function
        frame = frame.f_back
    return LOOP


def case_of(title: str) -> Case:
    """The first case with this in its title. Ends the program if there is none."""
    for case in CASES:
        if title in case.title:
            return case
    sys.exit(f"--case: no title has {title!r} in it; these are: {', '.join(case.title for case in CASES)}")


async def serve(title: str) -> None:
    """Serve until the end of stdin. Prints the port first, and then at every second line on stdin the profile since the
    line before."""
    shared = handler(case_of(title))
    ext_proc = ExtProc(partial(RequestStream, shared), memory=shared.budget, registry=CollectorRegistry())
    options = Http2Options(max_message_size=20 * 2**20)
    server = Http2Server({METHOD: ext_proc.begin}, options, memory=MemoryBudget(), clock=time.monotonic)
    await server.start("127.0.0.1", 0)
    print(server.port, flush=True)
    samples: Counter[str] = Counter()
    known: dict[CodeType, str] = {}

    def sample(_: int, frame: FrameType | None) -> None:
        samples[function_of(frame, known)] += 1

    signal.signal(signal.SIGPROF, sample)
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    while await stdin.readline():
        samples.clear()
        signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
        used = time.process_time()
        await stdin.readline()
        used = time.process_time() - used
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(msgspec.json.encode(Profile(used, dict(samples))).decode(), flush=True)
    await server.stop(0)


class Server:
    """A server process with the code of a tree, and a client of it."""

    def __init__(self, title: str, tree: Path = ROOT) -> None:
        self._command = [sys.executable, "-m", "tests.benchmarks.bench_steps", "--serve", "--case", title]
        self._talk, self._tree = case_of(title).talk(), tree
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        with on_core(MEASURED):
            process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe, cwd=self._tree)
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self._stack.push_async_callback(process.wait)
        self._stack.callback(self._stdin.close)
        port = int(await self._stdout.readline())
        self._client = await self._stack.enter_async_context(Http2Client(port, self._talk))
        await self._client.converse(WARM_UP, AT_A_TIME)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    async def profile(self, length: float) -> tuple[Profile, int]:
        """(the profile of so many seconds, how many conversations it is of)."""
        self._stdin.write(b"\n")
        count = await self._client.converse(length, AT_A_TIME)
        self._stdin.write(b"\n")
        return msgspec.json.decode(await self._stdout.readline(), type=Profile), count


async def measure(title: str, length: float) -> tuple[Profile, int]:
    """The same of a server of its own."""
    async with Server(title) as server:
        return await server.profile(length)


def main(arguments: argparse.Namespace) -> None:
    with on_core(OTHERS):
        profile, count = uvloop.run(measure(arguments.case, arguments.seconds))
    each, total = profile.seconds / count, sum(profile.samples.values())
    steps = Counter(dict.fromkeys(STEPS, 0))
    for function, samples in profile.samples.items():
        steps[step_of(function) or LOOP] += samples
    functions = Counter(profile.samples).most_common(arguments.functions)
    for name, samples in [*steps.items(), *functions]:
        share = samples / total
        print(f"{name:50} {share * 100:5.1f} % {share * each * 1e6:7.1f} µs")
    print(f"{f'{count} conversations':50} {100:5.1f} % {each * 1e6:7.1f} µs; {total} samples")


if __name__ == "__main__":
    logs.configure("error", "console")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default=USUAL, help="part of the title of one of bench_picker's cases")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which conversations are had")
    parser.add_argument("--functions", type=int, default=0, help="the functions to list, those that take most")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        uvloop.run(serve(given.case))
    else:
        main(given)
