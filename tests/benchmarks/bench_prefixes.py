"""What pickers pay for sharing their prefix placements, and how long a dump takes.

    .venv/bin/python -m tests.benchmarks.bench_prefixes [memory BLOCKS]

It starts nats-servers of its own and takes about a minute. It prints

- sharing: one of four pickers with 1 000 picks/s each. What its process uses more with sharing than without: share of a
  core, CPU a pick, also as a multiple of a fixed loop of plain Python, and bytes of batches a pick. The prompts have 16
  blocks, of which 4 or all are new. The other three pickers are another process;
- a prompt of 220 kB of which nine tenths are known: bytes that are sent for it;
- the index alone: CPU to look a prompt up and to place it, with 16 blocks and with 860; and to place one of 4 new
  blocks at an endpoint that holds as many as it can, by how many these are;
- resident memory of a picker with 1 000 endpoints, before and after its index is full: `BLOCKS` of
  `--max-prefix-blocks`, by default as many as its default. Endpoints have caches of 31 250 blocks
  (`lruCapacityPerServer`), so 31 250 000 is the most that such a picker ever has;
- a dump of a million blocks to a picker that starts: seconds until it is ready, and the longest turn of the event loop,
  in which both pickers and the client of NATS run, in CPU time and by the clock.
"""

import asyncio
import logging
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from services.picker.bus.prefix_sharing import PrefixSharing
from services.picker.settings.limits import DEFAULT_VIEW_LIMITS, Sharing
from services.picker.state.prefix import block_hashes
from services.picker.state.prefix_announcements import Announcements
from services.picker.state.view import View
from shared.bus.codec import encode
from shared.bus.connection import Bus
from shared.bus.subjects import Subjects, pool_token
from shared.model import Endpoint
from tests import in_process
from tests.benchmarks.bench_decide import reference
from tests.nats import NatsServer, nats_server
from tests.protocol.collector.harness import Owner
from tests.waiting import eventually

SUBJECTS = Subjects()
POOL = pool_token("default", "bench")
RATE, SECONDS, PEERS = 1000, 4.0, 3
TICK = 0.01
CAPACITY = 31_250
ENDPOINTS = 32


def world(endpoints: int = ENDPOINTS) -> View:
    view = View()
    names = [f"e{at}" for at in range(endpoints)]
    view.reset({name: Endpoint(id=name, name=name, address=f"10.0.0.{name[1:]}", port=80) for name in names})
    assert len(view.layout) == endpoints
    return view


class Picker:
    """A picker's index and its part in the sharing."""

    def __init__(self, url: str, id: str, *, shares: bool = True) -> None:
        self.view = world()
        self.bus = Bus(url, name=id)
        self.sharing = PrefixSharing(self.bus, SUBJECTS, POOL, id, self.view, Sharing(wait=60.0), lambda: True)
        self.sharing.configure("bench" if shares else "", lambda _row: CAPACITY)
        self._random = random.Random(id)
        self._known = [[self._random.getrandbits(64) for _ in range(12)] for _ in range(200)]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.sharing.start()
        await self.bus.start()
        await self.bus.wait_connected(5.0)
        self._tasks = [asyncio.ensure_future(task) for task, _ in self.sharing.tasks()]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self.bus.close()

    def pick(self, new: int) -> None:
        """Place a prompt of 16 blocks, so many of which are new."""
        draw = self._random
        known = draw.randrange(len(self._known))
        hashes = self._known[known][: 16 - new] + [draw.getrandbits(64) for _ in range(new)]
        self.view.prefixes.match(hashes)
        self.view.prefixes.add(f"e{known % ENDPOINTS}", hashes, CAPACITY)

    async def picks(self, new: int, seconds: float) -> None:
        began, done = time.monotonic(), 0
        while (now := time.monotonic()) < began + seconds:
            for _ in range(int((now - began) * RATE) - done):
                self.pick(new)
                done += 1
            await asyncio.sleep(TICK)


def peers(url: str, new: int, seconds: float) -> None:
    """The other pickers, in a process of their own."""
    quiet()

    async def run() -> None:
        pickers = [Picker(url, f"peer{number}") for number in range(PEERS)]
        for picker in pickers:
            await picker.start()
        await asyncio.gather(*(picker.picks(new, seconds) for picker in pickers))
        for picker in pickers:
            await picker.stop()

    asyncio.run(run())


async def shared(server: NatsServer, new: int, *, shares: bool) -> tuple[float, float]:
    """(share of a core, bytes of its own batches a pick) of one of four pickers."""
    picker = Picker(server.url, "measured", shares=shares)
    process = multiprocessing.get_context("spawn").Process(target=peers, args=(server.url, new, SECONDS + 6))
    if shares:
        process.start()
    sizes: list[int] = []
    publish = picker.bus.publish

    async def weighed(subject: str, payload: bytes = b"", **options: Any) -> bool:
        sizes.append(len(payload))
        return await publish(subject, payload, **options)

    picker.bus.publish = weighed  # type: ignore[method-assign]
    await picker.start()
    while shares and picker.sharing.peers.listening(time.monotonic()) < PEERS:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.05)
    await picker.picks(new, 1.0)
    sizes.clear()
    began, cpu = time.monotonic(), time.process_time()
    await picker.picks(new, SECONDS)
    used, took = time.process_time() - cpu, time.monotonic() - began
    size = sum(sizes)
    await picker.stop()
    if shares:
        process.join()
    return used / took, size / (RATE * took)


def long_prompt() -> None:
    draw = random.Random(1)
    text = draw.randbytes(220_000)
    view = world()
    index = view.prefixes
    index.changes = []
    index.add("e1", block_hashes(text[:198_000], 256, b"", 0), CAPACITY)
    index.changes.clear()
    hashes = block_hashes(text, 256, b"", 0)
    index.add("e1", hashes, CAPACITY)
    batch = Announcements("p1", 1).batch("1: autoTune True, 64 tokens", complete=True, changes=index.changes)
    blocks = len(batch.blocks) // 8
    print(f"220 kB, nine tenths known: {blocks} of {len(hashes)} blocks are sent, {len(encode(batch))} bytes")


def alone() -> None:
    """The index, for prompts that are known and prompts that aren't."""
    draw = random.Random(2)
    for count in (16, 860):
        index = world().prefixes
        index.changes = []
        place = partial(index.add, "e1", capacity=CAPACITY)
        prompts = [[draw.getrandbits(64) for _ in range(count)] for _ in range(5)]
        times = {"new": 9.0, "known": 9.0, "look-up": 9.0}
        works: tuple[tuple[str, Callable[[list[int]], object]], ...]
        works = (("new", place), ("known", place), ("look-up", index.match))
        for _ in range(60):
            for name, work in works:
                began = time.process_time()
                for prompt in prompts:
                    work(prompt)
                times[name] = min(times[name], (time.process_time() - began) / len(prompts))
            for prompt in (*prompts, *prompts):
                index.forget("e1", prompt)
            index.changes.clear()
        words = ", ".join(f"{name} {seconds * 1e6:.1f} µs" for name, seconds in times.items())
        print(f"the index, {count} blocks: {words}")
    for capacity in (5_000, CAPACITY, 65_536):
        index = world().prefixes
        for _ in range(capacity // 4 + 1):
            index.add("e1", [draw.getrandbits(64) for _ in range(4)], capacity)
        prompts = [[draw.getrandbits(64) for _ in range(4)] for _ in range(capacity)]
        began = time.process_time()
        for prompt in prompts:
            index.add("e1", prompt, capacity)
        each = (time.process_time() - began) / len(prompts)
        print(f"the index, 4 new blocks at an endpoint that is full with {capacity}: {each * 1e6:.1f} µs")


def memory(most: int) -> None:
    """A picker, in a process of its own; with the maximum of blocks."""
    quiet()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(filled(Path(directory), most))


async def filled(directory: Path, most: int, endpoints: int = 1000) -> None:
    """Filled one and a half times, so that half of the blocks have been replaced. No two endpoints share a block."""
    draw = random.Random(4)
    async with nats_server(directory) as server, AsyncExitStack() as stack:
        owner = Owner(server.url)
        await owner.start()
        stack.push_async_callback(owner.close)
        names = [f"e{at}" for at in range(endpoints)]
        await owner.publish([Endpoint(id=name, name=name, address=f"10.0.0.{name[1:]}", port=80) for name in names])
        service = in_process.picker(server.url, max_prefix_blocks=most)
        await stack.enter_async_context(in_process.serving(service))
        await eventually(lambda: service.readiness.ready, service.readiness.reasons)
        index = service.view.prefixes
        before, each = resident(), min(most // endpoints, CAPACITY)
        for at in range(endpoints):
            for _ in range(3 * each // 32):
                index.add(f"e{at}", [draw.getrandbits(64) for _ in range(16)], CAPACITY)
            await asyncio.sleep(0)  # to announce them
        assert index.held > 0.99 * each * endpoints
        after = resident()
        print(
            f"a picker with {endpoints} endpoints: {before / 2**20:.0f} MiB; with a full index of {index.held} blocks "
            f"(--max-prefix-blocks {most}): {after / 2**20:.0f} MiB, {(after - before) / index.held:.0f} bytes a block"
        )


def resident() -> int:
    """Bytes of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Turns:
    """The longest turn of the event loop."""

    def __init__(self) -> None:
        self.cpu = self.clock = 0.0
        self._loop = asyncio.get_running_loop()
        self._last: tuple[float, float] | None = None
        self._going = True
        self._turn()

    def _turn(self) -> None:
        now = time.thread_time(), time.monotonic()
        if self._last is not None:
            self.cpu, self.clock = max(self.cpu, now[0] - self._last[0]), max(self.clock, now[1] - self._last[1])
        self._last = now
        if self._going:
            self._loop.call_soon(self._turn)

    def stop(self) -> None:
        self._going = False


async def dumped(server: NatsServer) -> None:
    draw = random.Random(3)
    async with AsyncExitStack() as stack:
        full, fresh = Picker(server.url, "full"), Picker(server.url, "fresh")
        await full.start()
        stack.push_async_callback(full.stop)
        while full.sharing.readiness():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        for at in range(ENDPOINTS):
            full.view.prefixes.add(f"e{at}", [draw.getrandbits(64) for _ in range(CAPACITY)], CAPACITY)
        await asyncio.sleep(0.5)
        turns, began, cpu = Turns(), time.monotonic(), time.process_time()
        await fresh.start()
        stack.push_async_callback(fresh.stop)
        while fresh.sharing.readiness():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)
        took, used = time.monotonic() - began, time.process_time() - cpu
        turns.stop()
        assert fresh.view.prefixes.held == full.view.prefixes.held == ENDPOINTS * CAPACITY
        print(
            f"a dump of {ENDPOINTS * CAPACITY} blocks: {took:.2f} s, longest turn {turns.cpu * 1000:.1f} ms of CPU, "
            f"{turns.clock * 1000:.1f} ms by the clock ({used:.2f} s of CPU, the measuring included)"
        )


def loop() -> float:
    """CPU seconds of the loop of plain Python."""
    best = 1.0
    for _ in range(200):
        began = time.process_time()
        reference()
        best = min(best, time.process_time() - began)
    return best


def quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


async def run() -> None:
    quiet()
    with tempfile.TemporaryDirectory() as directory:
        async with nats_server(Path(directory)) as server:
            for new in (4, 16):
                without, _ = await shared(server, new, shares=False)
                with_, size = await shared(server, new, shares=True)
                costs = with_ - without
                print(
                    f"4 pickers, {RATE} picks/s each, {new} of 16 blocks new: {100 * costs:.1f} % of a core "
                    f"({100 * without:.1f} without sharing, {100 * with_:.1f} with), {costs * 1e6 / RATE:.0f} µs and "
                    f"{size:.0f} bytes a pick, {costs / (RATE * loop()):.1f} × the loop"
                )
            long_prompt()
            alone()
            measured = multiprocessing.get_context("spawn").Process(
                target=memory, args=(DEFAULT_VIEW_LIMITS.prefix_blocks,)
            )
            measured.start()
            measured.join()
            await dumped(server)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["memory", most]:
            memory(int(most))
        case _:
            asyncio.run(run())
