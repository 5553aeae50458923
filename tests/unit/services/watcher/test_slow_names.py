"""Host names whose look-up hangs: they cost themselves."""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.watcher import lookup as module
from services.watcher.lookup import Lookups, Resolver, SystemLookup
from services.watcher.metrics import WatcherMetrics
from services.watcher.resolve import MAX_ADDRESSES, Names
from shared.model import Endpoint
from shared.tasks import in_turns
from tests.unit.services.watcher.hosts import Followed, hosts_of
from tests.waiting import TIMEOUT, eventually
from tests.work import counted


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

    def __init__(self, timeout: float = TIMEOUT, concurrent: int = 100, interval: float = 30.0) -> None:
        self.names = Names(interval)
        self._followed = Followed(self.names)
        self.changes = 0
        self.registry = CollectorRegistry()
        lookups = Lookups(SystemLookup(concurrent), timeout, concurrent)
        self.resolver = Resolver(self.names, lookups, self._changed, WatcherMetrics(self.registry))

    def _changed(self, ids: Sequence[str]) -> None:
        self.changes += 1

    def follow(self, *how: Any) -> None:
        self.resolver.follow(self._followed.change(*how))

    async def __aenter__(self) -> "Running":
        self._task = asyncio.create_task(self.resolver.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def knows(self, *hosts: str) -> bool:
        return all(host in self.names.names and self.names.names[host].address for host in hosts)


async def test_names_that_hang_leave_the_loops_own_threads_to_others(dns: Dns) -> None:
    async with Running() as running:
        running.follow(endpoints(*slow(40)))
        await eventually(lambda: len(dns.asked) == 40)
        assert await asyncio.get_running_loop().getaddrinfo("nats", 4222)
        assert await asyncio.to_thread(lambda: "a file") == "a file"


async def test_a_name_that_hangs_delays_no_other(dns: Dns) -> None:
    async with Running() as running:
        running.follow(endpoints(*slow(40)))
        await eventually(lambda: len(dns.asked) == 40)
        running.follow(endpoints(*slow(40), "new"))
        await eventually(lambda: running.knows("new") and running.changes == 1)
        assert running.names.unresolved == sorted(slow(40))


async def test_a_name_that_hangs_is_asked_for_once_and_a_late_answer_counts(dns: Dns) -> None:
    async with Running(timeout=0.01, interval=0.02) as running:
        running.follow(endpoints("slow"))
        await eventually(lambda: dns.asked and running.names.names["slow"].error == "no answer in time")
        await asyncio.sleep(0.1)
        assert dns.asked == ["slow"]
        assert running.registry.get_sample_value("pointsman_watcher_lookup_failures_total") == 1.0
        dns.release()
        await eventually(lambda: running.knows("slow") and running.changes == 1)
        await eventually(lambda: len(dns.asked) > 1, "the next look-up")


async def test_names_that_hang_leave_slots_to_new_and_to_known_names_of_the_same_file(dns: Dns) -> None:
    async with Running(timeout=0.01, concurrent=8, interval=0.02) as running:
        running.follow(endpoints("known"))
        await eventually(lambda: running.knows("known"))
        running.follow(endpoints("known", *slow(8)))
        await eventually(lambda: len(dns.hanging) > 4)
        asked = dns.asked.count("known")
        await eventually(lambda: dns.asked.count("known") > asked)
        running.follow(endpoints("known"))
        dns.release()
        await eventually(lambda: not sum(dns.hanging.values()))
        dns.hang_again()
        running.follow(endpoints("known", "new"))
        await eventually(lambda: running.knows("new"))


async def test_names_of_one_file_that_turn_out_to_hang_make_no_room_for_more_of_them(dns: Dns) -> None:
    def origin(endpoint: Endpoint) -> str:
        return endpoint.host.partition("-")[0]

    failures = "pointsman_watcher_lookup_failures_total"
    async with Running(timeout=0.01, concurrent=8) as running:
        running.follow(endpoints(*slow(20)), origin)
        await eventually(lambda: (running.registry.get_sample_value(failures) or 0.0) >= 4)
        await eventually(lambda: sum(dns.hanging.values()) >= 4)
        running.follow(endpoints(*slow(20), "good"), origin)
        await eventually(lambda: running.knows("good"))
        assert sum(dns.hanging.values()) == 4


async def test_names_of_one_file_that_hang_leave_slots_to_other_files(dns: Dns) -> None:
    def origin(endpoint: Endpoint) -> str:
        return "bad.yaml" if endpoint.host in hanging else "good.yaml"

    hanging = slow(500)
    async with Running() as running:
        running.follow(endpoints(*hanging), origin)
        await eventually(lambda: sum(dns.hanging.values()) == 50)
        good = [f"good-{number}" for number in range(100)]
        running.follow(endpoints(*hanging, *good), origin)
        await eventually(lambda: running.knows(*good))
        assert sum(dns.hanging.values()) == 50


async def test_the_names_of_many_files_that_hang_leave_slots_to_others(dns: Dns) -> None:
    def origin(endpoint: Endpoint) -> str:
        return endpoint.host.rpartition("-")[0]

    hanging = [f"slow-{file}-{number}" for file in range(12) for number in range(60)]
    async with Running(concurrent=64, timeout=0.01, interval=0.02) as running:
        running.follow(endpoints(*hanging), origin)
        await eventually(lambda: sum(dns.hanging.values()) >= 48)
        await asyncio.sleep(0.1)
        good = [f"good-{number}" for number in range(20)]
        running.follow(endpoints(*hanging, *good), origin)
        await eventually(lambda: running.knows(*good))
        assert sum(dns.hanging.values()) <= 48 + 12


async def test_names_that_were_known_and_hang_leave_slots_to_others(dns: Dns) -> None:
    def origin(endpoint: Endpoint) -> str:
        return endpoint.host.partition("-")[0]

    dns.release()
    async with Running(concurrent=16, timeout=0.01, interval=0.02) as running:
        running.follow(endpoints(*slow(60)), origin)
        await eventually(lambda: running.knows(*slow(60)))
        dns.hang_again()
        await eventually(lambda: sum(dns.hanging.values()) >= 12)
        running.follow(endpoints(*slow(60), "good-1", "good-2"), origin)
        await eventually(lambda: running.knows("good-1", "good-2"))


async def test_a_name_that_passes_from_one_endpoint_to_another_keeps_its_address(dns: Dns) -> None:
    async with Running() as running:
        running.resolver.follow({"x": ("a", ""), "y": ("b", "")})
        await eventually(lambda: running.knows("a", "b"))
        for first, second in (("x", "y"), ("y", "x")):
            running.resolver.follow({first: ("b", ""), second: ("a", "")})
            await asyncio.sleep(0)
            assert running.knows("a", "b")
        assert sorted(dns.asked) == ["a", "b"]


async def test_others_run_while_many_names_are_followed(dns: Dns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "in_turns", partial(in_turns, turn=0.0))
    running = Running()
    hosts = {str(number): (f"a{number}", "") for number in range(2 * module.MAX_CHANGES)}
    running.resolver.follow(hosts)
    turns, following = 0, asyncio.ensure_future(running.resolver.look_up_due(within=TIMEOUT))
    while len(running.names.names) < len(hosts):
        await asyncio.sleep(0)
        turns += 1
    assert turns >= len(hosts) / 2
    await following


async def test_look_ups_of_names_that_are_forgotten_do_not_pile_up(dns: Dns) -> None:
    async with Running(concurrent=8) as running:
        before = len(asyncio.all_tasks())
        for number in range(10):
            running.follow(endpoints(*(f"slow-{number}-{index}" for index in range(100))))
            await asyncio.sleep(0.05)
        await eventually(lambda: sum(dns.hanging.values()) == 4)
        assert len(asyncio.all_tasks()) - before <= 2 * 8
        running.follow(endpoints("good"))
        dns.release()
        await eventually(lambda: running.knows("good"))
        assert len(dns.asked) == 5, "no forgotten name is looked up"


async def test_a_name_that_comes_back_during_its_look_up_gets_the_answer(dns: Dns) -> None:
    async with Running() as running:
        running.follow(endpoints("slow"))
        await eventually(lambda: dns.hanging["slow"])
        running.follow([])
        running.follow(endpoints("slow"))
        await asyncio.sleep(0.05)
        dns.release()
        await eventually(lambda: running.knows("slow"))
        assert dns.asked == ["slow"]


async def test_no_more_names_are_looked_up_at_a_time_than_there_are_slots(dns: Dns) -> None:
    async with Running(concurrent=3) as running:
        running.follow(endpoints(*slow(5)), lambda endpoint: endpoint.host)
        await eventually(lambda: sum(dns.hanging.values()) == 3)
        await asyncio.sleep(0.05)
        assert len(dns.asked) == 3
        dns.release()
        await eventually(lambda: running.knows(*slow(5)))


async def test_a_name_that_does_not_exist_says_so(dns: Dns) -> None:
    with pytest.raises(socket.gaierror, match="Name or service not known"):
        await SystemLookup()("nowhere")


async def test_an_answer_of_thousands_of_addresses_costs_the_event_loop_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = [f"10.1.{number >> 8}.{number & 255}" for number in range(4000)]
    lookup = SystemLookup()

    async def look_up(answer: list[str]) -> tuple[list[str], int]:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in answer]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        with counted() as work:
            return await lookup("many"), work.instructions

    _, few = await look_up(addresses[:1])
    found, many = await look_up(addresses[::-1])
    assert found == addresses[:MAX_ADDRESSES]
    assert many < few + 4000


async def test_a_start_waits_for_names_as_long_as_it_was_told(dns: Dns) -> None:
    resolver = Running().resolver
    resolver.follow(hosts_of(endpoints("good", *slow(100))))
    await eventually(lambda: resolver.look_up_due(within=0.2))
    assert sorted(resolver.names.unresolved) == sorted(slow(100))


async def test_the_event_loop_starts_no_thread_but_the_first(dns: Dns, monkeypatch: pytest.MonkeyPatch) -> None:
    starters: Counter[int] = Counter()
    start = threading.Thread.start

    def recording(thread: threading.Thread) -> None:
        starters[threading.get_ident()] += 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", recording)
    lookup = SystemLookup(concurrent=8)
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

    lookup = SystemLookup()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="no thread can be started"):
            await lookup("a")
    assert await lookup("b") == ["10.0.0.1"]
