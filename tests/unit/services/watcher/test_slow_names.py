"""Host names whose look-up hangs: they cost themselves."""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.watcher.lookup import Resolver, SystemLookup
from services.watcher.metrics import WatcherMetrics
from services.watcher.resolve import Names
from shared.model import Endpoint
from tests.waiting import TIMEOUT, eventually


class Dns:
    """Stands for the machine's resolver: names that begin with `slow` hang until the test is over, or `release`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.hanging: Counter[str] = Counter()
        self._released = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, host: str, *_: object, **__: object) -> list[Any]:
        with self._lock:
            self.asked.append(host)
            self.hanging[host] += 1
        if host.startswith("slow"):
            self._released.wait(TIMEOUT)
        with self._lock:
            self.hanging[host] -= 1
        if host.startswith("no"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0))]

    def release(self) -> None:
        self._released.set()

    def hang_again(self) -> None:
        self._released.clear()


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dns]:
    fake = Dns()
    monkeypatch.setattr(socket, "getaddrinfo", fake)
    yield fake
    fake.release()


def slow(count: int) -> list[str]:
    return [f"slow-{number}" for number in range(count)]


def endpoints(*hosts: str) -> list[Endpoint]:
    return [Endpoint(id=f"default/{host}", name=host, address="", host=host, port=80) for host in hosts]


class Running:
    """A resolver at work."""

    def __init__(self, lookup: SystemLookup) -> None:
        self.names = Names(30.0)
        self.changes = 0
        self.resolver = Resolver(self.names, lookup, self._changed, WatcherMetrics(CollectorRegistry()))

    def _changed(self) -> None:
        self.changes += 1

    async def __aenter__(self) -> "Running":
        self._task = asyncio.create_task(self.resolver.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def knows(self, host: str) -> bool:
        return host not in self.names.unresolved


async def test_names_that_hang_leave_the_loops_own_threads_to_others(dns: Dns) -> None:
    async with Running(SystemLookup(30.0)) as running:
        running.resolver.follow(endpoints(*slow(40)))
        await eventually(lambda: len(dns.asked) == 40)
        assert await asyncio.get_running_loop().getaddrinfo("nats", 4222)
        assert await asyncio.to_thread(lambda: "a file") == "a file"


async def test_a_name_that_hangs_delays_no_other(dns: Dns) -> None:
    async with Running(SystemLookup(30.0)) as running:
        running.resolver.follow(endpoints(*slow(40)))
        await eventually(lambda: len(dns.asked) == 40)
        running.resolver.follow(endpoints(*slow(40), "new"))
        await eventually(lambda: running.knows("new") and running.changes == 1)
        assert running.names.unresolved == sorted(slow(40))


async def test_a_name_that_still_hangs_is_not_asked_for_again_beside_it(dns: Dns) -> None:
    lookup = SystemLookup(0.01)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await lookup("slow")
    assert dns.asked == ["slow"]
    dns.release()
    await eventually(lambda: not dns.hanging["slow"])
    assert await SystemLookup(30.0)("slow") == ["10.0.0.1"]


async def test_names_that_took_too_long_leave_places_to_others(dns: Dns) -> None:
    lookup = SystemLookup(0.01, concurrent=2)
    for host in slow(2):
        with pytest.raises(TimeoutError):
            await lookup(host)
    dns.release()
    await eventually(lambda: not sum(dns.hanging.values()))
    dns.hang_again()
    again = [asyncio.create_task(lookup(host)) for host in slow(2)]
    await eventually(lambda: len(dns.asked) == 3)

    async def answered() -> list[str]:
        try:
            return await lookup("good")
        except TimeoutError:
            return []  # the machine is busy

    assert await eventually(answered) == ["10.0.0.1"]
    assert set(dns.asked[2:]) == {"slow-0", "good"}
    dns.release()
    await asyncio.wait(again)


async def test_no_more_names_are_looked_up_at_a_time_than_there_are_places(dns: Dns) -> None:
    lookup = SystemLookup(30.0, concurrent=2)
    asking = [asyncio.create_task(lookup(host)) for host in slow(5)]
    await eventually(lambda: sum(dns.hanging.values()) == 2)
    await asyncio.sleep(0.05)
    assert len(dns.asked) == 2
    dns.release()
    assert await asyncio.gather(*asking) == [["10.0.0.1"]] * 5


async def test_a_name_that_does_not_exist_says_so(dns: Dns) -> None:
    with pytest.raises(socket.gaierror, match="Name or service not known"):
        await SystemLookup(30.0)("nowhere")


async def test_a_start_waits_for_names_as_long_as_it_was_told(dns: Dns) -> None:
    resolver = Running(SystemLookup(TIMEOUT)).resolver
    resolver.follow(endpoints(*slow(100), "good"))
    await eventually(lambda: resolver.look_up_due(within=0.2))
    assert sorted(resolver.names.unresolved) == sorted(slow(100))


def test_names_that_failed_least_are_asked_for_first() -> None:
    names = Names(30.0)
    names.follow(endpoints("a", "b", "c"))
    for host, failures in (("a", 3), ("b", 1)):
        for _ in range(failures):
            names.failed(host, "", 0.0)
    assert names.due(1000.0) == ["c", "b", "a"]
    assert [names.next_due(under_way) for under_way in ((), {"c"}, {"b", "c"}, {"a", "b", "c"})] == [
        0.0,
        0.5,
        2.0,
        None,
    ]


async def test_the_event_loop_starts_no_thread_but_the_first(dns: Dns, monkeypatch: pytest.MonkeyPatch) -> None:
    starters: Counter[int] = Counter()
    start = threading.Thread.start

    def recording(thread: threading.Thread) -> None:
        starters[threading.get_ident()] += 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", recording)
    lookup = SystemLookup(30.0, concurrent=8)
    asking = [asyncio.create_task(lookup(host)) for host in slow(20)]
    await eventually(lambda: sum(dns.hanging.values()) == 8)
    assert starters.total() == 8
    assert starters[threading.get_ident()] == 1
    dns.release()
    assert await asyncio.gather(*asking) == [["10.0.0.1"]] * 20
    assert starters.total() == 8, "threads are used again"


async def test_a_thread_that_cannot_be_started_fails_the_look_up(monkeypatch: pytest.MonkeyPatch, dns: Dns) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lookup = SystemLookup(30.0)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="no thread can be started"):
            await lookup("a")
    assert await lookup("b") == ["10.0.0.1"]
