"""Large messages: none of their bytes stay in the server while nothing comes, and one is answered at a time."""

import asyncio
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any

import grpc
import grpc.aio
import pytest

from services.picker.body_buffer import MemoryBudget
from services.picker.extproc.outgoing import REQUEST_BODY_UNCHANGED
from services.picker.transport.calls import StatusCode
from services.picker.transport.ext_proc import SERVICE, ExtProc, ExtProcCall
from shared.tasks import TURN
from tests.ext_proc_server import ExtProcServer
from tests.unit.services.picker.transport.immediate import Immediate
from tests.waiting import eventually

GRPC: Any = grpc.aio

LARGE = 8 * 2**20
METHOD = f"/{SERVICE}/Process"
pytestmark = pytest.mark.usefixtures("transport")


class Answering(Immediate):
    """An handler that keeps nothing, and gives large answers."""

    def receive(self, data: bytes) -> Iterator[bytes]:
        yield b""
        yield REQUEST_BODY_UNCHANGED
        yield bytes(len(data))

    def end(self) -> None:
        pass


class Stepping(Immediate):
    """An handler that answers in steps, and notes each."""

    def __init__(self, steps: list["Stepping"]) -> None:
        self.steps = steps

    def receive(self, data: bytes) -> Iterator[bytes]:
        for _ in range(3):
            self.steps.append(self)
            yield b""
        yield REQUEST_BODY_UNCHANGED

    def end(self) -> None:
        pass


class Noting(Immediate):
    """An handler that notes in which turn of the event loop it answers."""

    def __init__(self, turns: list[int], turn: Callable[[], int]) -> None:
        self.turns, self.turn = turns, turn

    def receive(self, data: bytes) -> list[bytes]:
        self.turns.append(self.turn())
        return [REQUEST_BODY_UNCHANGED]

    def end(self) -> None:
        pass


@asynccontextmanager
async def calling(
    make: Callable[[], Answering | Stepping],
) -> AsyncIterator[tuple[ExtProcServer, Callable[[], Any]]]:
    """A server of such handlers, and what opens streams to it."""
    server = ExtProcServer(make)
    await server.start()
    most = (("grpc.max_receive_message_length", 2 * LARGE), ("grpc.max_send_message_length", 2 * LARGE))
    async with GRPC.insecure_channel(f"127.0.0.1:{server.port}", options=most) as channel:
        yield server, channel.stream_stream(METHOD)
    await server.stop(0)


async def test_neither_a_message_nor_its_answers_stay_while_a_response_is_awaited() -> None:
    async with calling(Answering) as (server, stream):
        call = stream()
        tracemalloc.start()
        try:
            await call.write(bytes(LARGE))
            assert await call.read() == REQUEST_BODY_UNCHANGED
            assert len(await call.read()) == LARGE
            await eventually(lambda: tracemalloc.get_traced_memory()[0] < LARGE // 2)
            assert server.open == 1
        finally:
            tracemalloc.stop()
        call.cancel()


class Kept:
    """A stream that takes everything, and notes its end."""

    congested = False
    status: StatusCode | None = None

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def finish(self, status: StatusCode = StatusCode.OK, details: str = "") -> None:
        self.status = status


async def test_messages_that_wait_count_in_the_budget_of_all_bodies() -> None:
    memory, streams = MemoryBudget(100_000), [Kept(), Kept()]
    service = ExtProc(lambda: Stepping([]), memory=memory)
    calls = [service.begin(stream, ()) for stream in streams]
    for _ in range(3):
        for call in calls:
            call.receive(bytes(17_000))
    assert 5 * 17_000 < memory.used <= memory.limit
    assert [stream.status for stream in streams] == [None, StatusCode.RESOURCE_EXHAUSTED]
    calls[1].end()
    await eventually(lambda: memory.used == 0)
    calls[0].receive(bytes(17_000))
    calls[0].end()
    assert memory.used == 0


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize(
    ("whole", "began", "turned_away"),
    [
        # whose requests come as a whole, when each begins, and who has been turned away by then
        ("0123", [0, 0, 0, 0, 60], "4"),
        ("01", [0, 1, 5, 8, 14.9], "4"),  # two of four: after ten seconds
        ("01", [0, 1, 5, 8, 15], "2"),
        ("01", [0, 1, 5, 8, 18, 18, 18], "236"),  # two have room then
        ("0", [0, 1, 2, 3, 3.9], "12"),  # three of four: after one
        ("0", [0, 2, 2, 3, 2.9], "4"),
        ("", [0, 1, 2, 3, 3.9, 3.9, 3.9, 3.9], "0127"),
    ],
)
async def test_where_too_many_streams_are_open_requests_that_stay_incomplete_make_room(
    whole: str, began: list[float], turned_away: str, large: bool
) -> None:
    class Asking(Immediate):
        incomplete = True

        def receive(self, data: bytes) -> Iterable[bytes]:
            self.incomplete = False
            return iter(()) if large else []

        def end(self) -> None:
            pass

    class Ending(Kept):
        call: ExtProcCall | None = None

        def __init__(self) -> None:
            super().__init__()
            self.resumed = asyncio.Event()

        def resume(self) -> None:
            self.resumed.set()

        def finish(self, status: StatusCode = StatusCode.OK, details: str = "") -> None:
            super().finish(status, details)
            if self.call is not None:
                self.call.end()

    now = 0.0
    service = ExtProc(Asking, max_streams=4, clock=lambda: now)
    streams = [Ending() for _ in began]
    for number, stream in enumerate(streams):
        now = began[number]
        stream.call = service.begin(stream, ())
        if str(number) in whole:
            stream.call.receive(b"all of it")
            if large:
                await stream.resumed.wait()
        if stream.status is not None:
            stream.call.end()
    assert [number for number, stream in enumerate(streams) if stream.status is not None] == [*map(int, turned_away)]
    assert {stream.status for stream in streams} <= {None, StatusCode.UNAVAILABLE}
    assert service.open == len(streams) - len(turned_away)


async def test_messages_wait_while_their_answers_are_not_read() -> None:
    class Echoing(Immediate):
        def receive(self, data: bytes) -> list[bytes]:
            return [data]

        def end(self) -> None:
            pass

    stream = Kept()
    sent = stream.sent
    service = ExtProc(Echoing, memory=MemoryBudget())
    call = service.begin(stream, ())
    call.receive(b"1")
    stream.congested = True
    for text in (b"2", b"3"):
        call.receive(text)
    await asyncio.sleep(0.01)
    assert sent == [b"1"]
    stream.congested = False
    call.drained()
    await eventually(lambda: sent == [b"1", b"2", b"3"])
    call.end()


async def test_many_messages_of_one_stream_do_not_hold_up_others() -> None:
    sent: list[int] = []

    class Named(Kept):
        def __init__(self, name: int) -> None:
            self.name = name

        def send(self, message: bytes) -> None:
            sent.append(self.name)

    service = ExtProc(lambda: Noting([], int), memory=MemoryBudget())
    calls = [service.begin(Named(name), ()) for name in (1, 2)]
    for call, messages in zip(calls, (10, 3), strict=True):
        for _ in range(messages):
            call.receive(bytes(17_000))
    await eventually(lambda: len(sent) == 13)
    assert sent == [1, 2] * 3 + [1] * 7
    for call in calls:
        call.end()


async def test_large_requests_are_answered_one_after_the_other() -> None:
    steps: list[Stepping] = []

    async def ask(call: Any) -> None:
        await call.write(b"large")
        assert await call.read() == REQUEST_BODY_UNCHANGED
        call.cancel()

    async with calling(lambda: Stepping(steps)) as (_, stream):
        await asyncio.gather(*(ask(stream()) for _ in range(10)))
    assert [len(list(each)) for _, each in groupby(steps, id)] == [3] * 10


async def test_the_loop_turns_between_messages_that_may_take_long() -> None:
    """Clients that have a thread each send while the loop stands still: then it finds all messages at once."""
    turns: list[int] = []
    now, streams, go = 0, 5, threading.Event()

    async def count() -> None:
        nonlocal now
        while True:
            now += 1
            await asyncio.sleep(0)

    def say() -> Iterator[bytes]:
        yield b"small"
        go.wait()
        yield bytes(32_000)

    def ask(stream: Any) -> int:
        return len(list(stream(say())))

    server = ExtProcServer(lambda: Noting(turns, lambda: now))
    await server.start()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        asked = [
            asyncio.create_task(asyncio.to_thread(ask, channel.stream_stream(METHOD, None, None)))
            for _ in range(streams)
        ]
        await eventually(lambda: len(turns) == streams)
        turns.clear()
        counting = asyncio.create_task(count())
        go.set()
        time.sleep(0.3)  # noqa: ASYNC251 - the loop is to stand still
        assert await asyncio.gather(*asked) == [2] * streams
        counting.cancel()
    await server.stop(0)
    assert len(set(turns)) == streams


class Released(Noting):
    """A handler whose request waits until a test lets it go; its answer takes more than half of its share of a turn."""

    def receive(self, data: bytes) -> list[bytes]:
        self.waiting = True
        return []

    def outbox(self) -> list[bytes]:
        self.turns.append(self.turn())
        self.waiting = self.ready = False
        until = time.perf_counter() + TURN * 0.6
        while time.perf_counter() < until:
            pass
        return [REQUEST_BODY_UNCHANGED]


async def test_the_loop_turns_between_requests_that_have_waited_for_the_same_thing() -> None:
    turns: list[int] = []
    handlers: list[Released] = []
    now, streams = 0, 6

    def make() -> Released:
        handlers.append(Released(turns, lambda: now))
        return handlers[-1]

    async def count() -> None:
        nonlocal now
        while True:
            now += 1
            await asyncio.sleep(0)

    server = ExtProcServer(make)
    await server.start()
    async with GRPC.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        calls = [channel.stream_stream(METHOD, None, None)() for _ in range(streams)]
        for call in calls:
            await call.write(b"small")
        await eventually(lambda: len(handlers) == streams and all(handler.waiting for handler in handlers))
        counting = asyncio.create_task(count())
        for handler in handlers:
            handler.ready = True
            handler.wake()
        for call in calls:
            assert await call.read() == REQUEST_BODY_UNCHANGED
        counting.cancel()
    await server.stop(0)
    assert len(set(turns)) >= streams / 2, turns
