"""Look-ups of names for scrapes, some of which hang."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from yarl import URL

from services.collector.http.client import Client
from services.collector.http.names import THREADS, Names
from tests.waiting import eventually


class Resolver:
    """Answers good names; others hang until `answer` is set."""

    def __init__(self) -> None:
        self.fails = True
        """Whether those that hang have no address in the end."""
        self.answer = threading.Event()
        self.asked: list[str] = []
        self.hanging: set[str] = set()

    def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        if host.startswith("slow"):
            self.hanging.add(host)
            self.answer.wait(60)
            self.hanging.discard(host)
            if self.fails:
                raise OSError("no answer")
        return ["10.0.0.1"]

    async def give_up(self, names: Names, host: str) -> None:
        """Wait for a name until its look-up hangs, or is refused."""
        waiting = asyncio.ensure_future(names.addresses(host))
        while host not in self.hanging and not waiting.done():  # noqa: ASYNC110 - a thread has no event
            await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    made = Resolver()
    yield made
    made.answer.set()


async def test_an_address_is_not_looked_up(resolver: Resolver) -> None:
    assert list(await Names(resolver).addresses("10.0.0.9")) == ["10.0.0.9"]
    assert list(await Names(resolver).addresses("fd00::1")) == ["fd00::1"]
    assert resolver.asked == []


async def test_a_name_has_one_lookup_at_a_time(resolver: Resolver) -> None:
    names = Names(resolver)
    for _ in range(3):
        await resolver.give_up(names, "slow")
    assert resolver.asked == ["slow"]


@pytest.mark.parametrize("fails", [True, False])
async def test_names_that_hang_leave_half_of_the_threads_to_others(resolver: Resolver, fails: bool) -> None:
    """Also if they have an address in the end."""
    names = Names(resolver)
    resolver.fails = fails
    slow = [f"slow-{number}" for number in range(THREADS)]
    await asyncio.gather(*(resolver.give_up(names, host) for host in slow))
    resolver.answer.set()
    await eventually(lambda: not names.under_way)
    resolver.answer.clear()
    await asyncio.gather(*(resolver.give_up(names, host) for host in slow))
    assert len(resolver.asked) == THREADS + THREADS // 2
    assert list(await names.addresses("good")) == ["10.0.0.1"]


async def test_a_name_that_took_long_is_like_others_once_it_answers_in_time(resolver: Resolver) -> None:
    names = Names(resolver)
    resolver.fails = False
    await resolver.give_up(names, "slow")
    resolver.answer.set()
    await eventually(lambda: not names.under_way)
    await names.addresses("slow")
    resolver.answer.clear()
    for number in range(THREADS // 2):
        await resolver.give_up(names, f"slow-{number}")
    asking = asyncio.ensure_future(names.addresses("slow"))
    await eventually(lambda: "slow" in resolver.hanging)
    resolver.answer.set()
    assert list(await asking) == ["10.0.0.1"]


async def test_names_that_answer_do_not_wait_for_new_ones_that_hang(resolver: Resolver) -> None:
    names = Names(resolver)
    await names.addresses("good")
    await asyncio.gather(*(resolver.give_up(names, f"slow-{number}") for number in range(THREADS)))
    assert list(await names.addresses("good")) == ["10.0.0.1"]


async def test_a_name_with_several_addresses_is_where_one_of_them_answers() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = Client(60.0, 1000, names=Names(lambda _: ["127.0.0.2", "127.0.0.1"]))
        assert await client.get(URL(f"http://model-server:{port}/metrics"), False) == b"ok"
        await client.close()
