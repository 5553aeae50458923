"""Look-ups of names for scrapes, some of which hang."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from yarl import URL

from services.collector.http import names as names_module
from services.collector.http.client import Client
from services.collector.http.names import FEW, THREADS, Names
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

    async def give_up(self, names: Names, *hosts: str, hanging: int) -> None:
        """Wait for names until the look-ups of so many hang."""
        waiting = [asyncio.ensure_future(names.addresses(host)) for host in hosts]
        await eventually(lambda: len(self.hanging.intersection(hosts)) == hanging)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def end(self, names: Names) -> None:
        """Let all look-ups end. Further ones hang."""
        self.answer.set()
        await eventually(lambda: not names.under_way)
        self.answer.clear()


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
        await resolver.give_up(names, "slow", hanging=1)
    assert resolver.asked == ["slow"]


@pytest.mark.parametrize("fails", [True, False])
async def test_names_that_hang_keep_a_few_threads_and_leave_those_of_others(resolver: Resolver, fails: bool) -> None:
    """Also if they have an address in the end."""
    names = Names(resolver)
    resolver.fails = fails
    slow = [f"slow-{number}" for number in range(THREADS)]
    await resolver.give_up(names, *slow, hanging=THREADS)
    await resolver.end(names)
    await resolver.give_up(names, *slow, hanging=FEW)
    assert len(resolver.asked) == THREADS + FEW
    assert list(await names.addresses("good")) == ["10.0.0.1"]


async def test_a_name_that_has_answered_late_does_not_wait_for_those_that_hang(resolver: Resolver) -> None:
    names = Names(resolver)
    resolver.fails = False
    await resolver.give_up(names, "slow", hanging=1)
    await resolver.end(names)
    resolver.fails = True
    hung = [f"slow-{number}" for number in range(FEW)]
    await resolver.give_up(names, *hung, hanging=FEW)
    await resolver.end(names)
    await resolver.give_up(names, *hung, hanging=FEW)
    asking = asyncio.ensure_future(names.addresses("slow"))
    await eventually(lambda: "slow" in resolver.hanging)
    resolver.fails = False
    resolver.answer.set()
    assert list(await asking) == ["10.0.0.1"]


async def test_a_name_that_took_long_is_like_others_once_it_answers_in_time(resolver: Resolver) -> None:
    names = Names(resolver)
    resolver.fails = False
    late = [f"slow-{number}" for number in range(FEW)]
    await resolver.give_up(names, "slow", *late, hanging=1 + FEW)
    await resolver.end(names)
    asking = asyncio.ensure_future(names.addresses("slow"))
    await eventually(lambda: "slow" in resolver.hanging)
    await resolver.end(names)
    await asking
    await resolver.give_up(names, *late, hanging=FEW)
    asking = asyncio.ensure_future(names.addresses("slow"))
    await eventually(lambda: "slow" in resolver.hanging)
    resolver.answer.set()
    assert list(await asking) == ["10.0.0.1"]


@pytest.mark.parametrize(("patience", "looked_up"), [(60.0, True), (-1.0, False)])
async def test_what_nobody_asks_for_any_more_is_not_looked_up(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch, patience: float, looked_up: bool
) -> None:
    names = Names(resolver)
    hung = [f"slow-{number}" for number in range(THREADS)]
    await resolver.give_up(names, *hung, "slow-and-last", hanging=THREADS)
    monkeypatch.setattr(names_module, "ABANDONED", patience)
    await resolver.end(names)
    assert ("slow-and-last" in resolver.asked) is looked_up


async def test_of_many_names_those_that_were_looked_up_last_are_known(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names_module, "MAX_KNOWN", 2)
    names = Names(resolver)
    for host in ("a", "b", "a", "c"):
        await names.addresses(host)
    await resolver.give_up(names, *(f"slow-{number}" for number in range(THREADS)), hanging=THREADS)
    assert list(await names.addresses("a")) == ["10.0.0.1"]
    asking = asyncio.ensure_future(names.addresses("b"))
    await asyncio.sleep(0.05)
    assert not asking.done()
    resolver.answer.set()
    await asking


async def test_names_that_answer_do_not_wait_for_new_ones_that_hang(resolver: Resolver) -> None:
    names = Names(resolver)
    await names.addresses("good")
    await resolver.give_up(names, *(f"slow-{number}" for number in range(THREADS)), hanging=THREADS)
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
