"""How long the bus takes: put-to-view of frames, what a frame costs a picker, and resynchronisation of facts.

    .venv/bin/python -m tests.benchmarks.bench_bus

It starts a nats-server of its own and takes about 10 s. It prints

- put-to-view: from a collector's `publish` of a frame of 100 endpoints with 10 attributes until a picker's handler has
  it decoded, 20 frames a second to four readers, p50 and p99;
- put-to-view while the same frames are read by one reader as fast as they can be sent;
- what such a frame costs a picker: CPU to decode it and to take it into its columns. All numbers are new each time; two
  of the attributes may be lists of names (LoRA adapters), which stay the same or are all new; best of several rounds,
  and as a multiple of a fixed loop of plain Python that is timed beside it;
- resync: from the moment that a killed nats-server answers again until a reader of 5 000 facts has the whole set, which
  has changed in the meantime: once with its store, once wiped; and the CPU of both. The reader is another process.

But for that reader, all share one event loop, so times include each other's work.
"""

import asyncio
import logging
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import structlog
import uvloop

from services.picker.state.columns import Columns
from services.picker.state.layout import Layout
from shared.bus.codec import decode, encode
from shared.bus.columns import pack_ages, pack_floats
from shared.bus.connection import Bus
from shared.bus.facts import Event
from shared.bus.frame_bucket import FrameBucket
from shared.bus.frame_columns import FrameContent
from shared.bus.frame_publisher import FramePublisher
from shared.bus.frame_reader import FrameReader
from shared.bus.messages import Frame
from shared.bus.publisher import FactPublisher
from shared.bus.replica import Replica
from shared.bus.subjects import Subjects, fact_key, pool_token
from shared.model import Endpoint, Fact
from tests.benchmarks.bench_collector import _cpu as cpu_of
from tests.benchmarks.bench_collector import child
from tests.benchmarks.bench_conversation import reference
from tests.benchmarks.bench_scrape import held
from tests.nats import NatsServer, nats_server

SUBJECTS = Subjects()
POOL = pool_token("default", "bench")
ENDPOINTS = [f"default/vllm-{number}" for number in range(100)]
ATTRIBUTES = [f"Attribute{number}/core-metrics-extractor" for number in range(10)]
READERS = 4
FACTS = 5000


def percentiles(seconds: list[float]) -> str:
    cuts = statistics.quantiles(seconds, n=100)
    return f"p50 {cuts[49] * 1000:.2f} ms, p99 {cuts[98] * 1000:.2f} ms ({len(seconds)} frames)"


async def connected(stack: AsyncExitStack, server: NatsServer, name: str) -> Bus:
    bus = await stack.enter_async_context(Bus(server.url, name=name))
    await bus.wait_connected(5.0)
    return bus


async def put_to_view(server: NatsServer, readers: int, rate: float, seconds: float) -> list[float]:
    """Seconds from each publish until each reader had the frame; `rate` frames a second, 0 for as fast as it goes."""
    taken: list[float] = []

    def on_frame(frame: Frame, extra_age: float) -> None:
        taken.append(time.monotonic() - frame.sent)

    async with AsyncExitStack() as stack:
        for number in range(readers):
            reader = FrameReader(await connected(stack, server, f"picker-{number}"), SUBJECTS, POOL, on_frame)
            await reader.start()
            stack.push_async_callback(reader.close)
        bucket = FrameBucket(await connected(stack, server, "watcher"), SUBJECTS)
        await bucket.start()
        stack.push_async_callback(bucket.close)
        publisher = FramePublisher(await connected(stack, server, "collector"), SUBJECTS, POOL, "collector")
        stack.push_async_callback(publisher.close)
        await asyncio.sleep(0.3)
        taken.clear()
        columns = {name: pack_floats(np.random.default_rng(1).random(len(ENDPOINTS))) for name in ATTRIBUTES}
        ages = {name: pack_ages(np.zeros(len(ENDPOINTS))) for name in ATTRIBUTES}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sent = len(taken)
            await publisher.publish(0, FrameContent(ids=tuple(ENDPOINTS), columns=columns, ages=ages))
            if rate:
                await asyncio.sleep(1 / rate)
            else:
                while len(taken) == sent:  # noqa: ASYNC110 - one frame on its way at a time
                    await asyncio.sleep(0)
    return taken


def frame_cost(lists: int, *, new: bool) -> tuple[float, float, float]:
    """CPU seconds of (decoding a frame, applying it, the loop of plain Python); so many attributes are lists of names,
    `new` ones with each frame."""
    random, count = np.random.default_rng(2), len(ENDPOINTS)
    encoded = []
    for number in range(2):
        numbers, names = ATTRIBUTES[lists:], ATTRIBUTES[:lists]
        frame = Frame(
            sender="collector",
            sent=0.0,
            sequence=number,
            ids=tuple(ENDPOINTS),
            columns={name: pack_floats(random.random(count)) for name in numbers},
            ages={name: pack_ages(np.zeros(count)) for name in ATTRIBUTES},
            objects={name: [[f"adapter-{number if new else 0}", "base"]] * count for name in names},
        )
        encoded.append(encode(frame))
    columns, now = Columns(), 0.0
    columns.relayout(
        Layout([Endpoint(id=endpoint, name=endpoint, address="10.0.0.1", port=8000) for endpoint in ENDPOINTS])
    )
    decoding = applying = loop = float("inf")
    for _ in range(20):
        began = time.process_time()
        frames = [decode(Frame, encoded[turn % 2]) for turn in range(200)]
        decoded = time.process_time()
        for frame in frames:
            now += 0.05
            columns.apply(frame, now, 0.0)
        applied = time.process_time()
        for _ in range(20):
            reference()
        ended = time.process_time()
        decoding, applying = min(decoding, (decoded - began) / 200), min(applying, (applied - decoded) / 200)
        loop = min(loop, (ended - applied) / 20)
    return decoding, applying, loop


async def read_facts(url: str) -> None:
    """The child that reads, until standard input closes: whenever its view has another number of facts, that and the
    monotonic time."""
    shown = 0

    def show(_: Event) -> None:
        nonlocal shown
        count = replica.extent()[0].count
        if count != shown:
            shown = count
            print(count, time.monotonic(), flush=True)

    async with Bus(url, name="picker") as bus:
        replica = Replica(bus, SUBJECTS, POOL, show)
        await replica.start()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await replica.close()


async def resync(server: NatsServer, *, wipe: bool) -> tuple[float, float, float]:
    """Seconds from the server's first answer until the reader's view is the owner's set, and CPU seconds of both."""
    facts: dict[str, Fact] = {}
    for number in range(FACTS):
        endpoint = Endpoint(id=f"default/vllm-{number}", name=f"vllm-{number}", address="10.0.0.1", port=8000)
        facts[fact_key(POOL, endpoint)] = endpoint
    async with AsyncExitStack() as stack:
        watcher = await connected(stack, server, "watcher")
        picker = await stack.enter_async_context(child("tests.benchmarks.bench_bus", "read-facts", server.url))

        async def seen(count: int) -> float:
            while not (line := await picker.line()).startswith(f"{count} "):
                assert line, "the reader has ended"
            return float(line.split()[1])

        publisher = FactPublisher(watcher, SUBJECTS, f"watcher-{wipe}")
        leading: asyncio.Task[None] = asyncio.create_task(publisher.run())
        publisher.update(facts, [POOL])
        await seen(len(facts))
        server.kill()
        while watcher.connected:  # noqa: ASYNC110 - a callback would not be simpler
            await asyncio.sleep(0.01)
        if wipe:
            server.wipe()
        facts.popitem()
        publisher.update(facts, [POOL])
        await server.start()
        started, cpu, others = time.monotonic(), time.process_time(), cpu_of(picker.pid)
        taken = await seen(len(facts)) - started
        used, read = time.process_time() - cpu, cpu_of(picker.pid) - others
        leading.cancel()
        await asyncio.wait([leading])
    return taken, used, read


async def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(f"a frame of {len(ENDPOINTS)} endpoints x {len(ATTRIBUTES)} attributes at a picker")
    for lists, new, what in (
        (0, False, "numbers alone"),
        (2, False, "two lists that stay"),
        (2, True, "two new lists"),
    ):
        decoding, applying, loop = frame_cost(lists, new=new)
        figures = f"decode {decoding * 1000:.3f} ms, apply {applying * 1000:.3f} ms"
        both, aim = decoding + applying, held((decoding + applying) * 1000, 0.1, " ms")
        print(f"  {what:21} {figures}, both {both / loop:.1f} times the loop of plain Python   {aim}")
    with tempfile.TemporaryDirectory() as directory:
        async with nats_server(Path(directory)) as server:
            print(f"frames of {len(ENDPOINTS)} endpoints x {len(ATTRIBUTES)} attributes, put to view")
            print(f"  20/s, {READERS} readers:   {percentiles(await put_to_view(server, READERS, 20, 3.0))}")
            print(f"  one by one, 1 reader: {percentiles(await put_to_view(server, 1, 0, 2.0))}")
            print(f"{FACTS} facts, server back to view complete (a reconnect waits up to 0.15 s of it)")
            for wipe, what in ((False, "store kept: "), (True, "store wiped:")):
                taken, owner, reader = (1000 * seconds for seconds in await resync(server, wipe=wipe))
                print(
                    f"  killed, {what}  {taken:.0f} ms {held(taken, 500, ' ms')}, CPU of owner and reader "
                    f"{owner:.0f} and {reader:.0f} ms"
                )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["read-facts", url]:
            uvloop.run(read_facts(url))
        case _:
            uvloop.run(main())
