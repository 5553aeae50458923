"""Looking names up when they are due."""

import asyncio
import socket

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from services.watcher.lookup import Lookups, Resolver
from services.watcher.metrics import WatcherMetrics
from services.watcher.resolve import Names


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Dns:
    """Answers, and failures, by name; counts the questions."""

    def __init__(self, **answers: list[str] | Exception) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        answer = self.answers[host]
        if isinstance(answer, Exception):
            raise answer
        return answer


def made(dns: Dns, clock: Clock) -> tuple[Resolver, CollectorRegistry, asyncio.Event]:
    registry, changed = CollectorRegistry(), asyncio.Event()
    resolver = Resolver(Names(30.0), Lookups(dns, 30.0, 64), lambda ids: changed.set(), WatcherMetrics(registry), clock)
    resolver.follow({f"default/{host}": (host, "") for host in dns.answers})
    return resolver, registry, changed


async def test_only_the_names_that_are_due_are_looked_up() -> None:
    dns, clock = Dns(a=["10.0.0.1"], b=["10.0.0.2"]), Clock()
    resolver, _, _ = made(dns, clock)
    assert await resolver.look_up_due() is True
    assert sorted(dns.asked) == ["a", "b"]
    clock.now = 29.9
    assert await resolver.look_up_due() is False
    assert len(dns.asked) == 2
    clock.now = 30.0
    assert await resolver.look_up_due() is False
    assert len(dns.asked) == 4


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (socket.gaierror(-2, "Name or service not known"), "[Errno -2] Name or service not known"),
        (TimeoutError(), "no answer in time"),
        (UnicodeError("label too long"), "label too long"),
    ],
)
async def test_a_failure_is_counted_and_said_once(failure: Exception, reason: str) -> None:
    dns, clock = Dns(a=failure, b=["10.0.0.2"]), Clock()
    resolver, registry, _ = made(dns, clock)
    with capture_logs() as logs:
        for clock.now in (0.0, 100.0, 200.0):
            await resolver.look_up_due()
    assert [log["reason"] for log in logs if log["event"] == "name.not_resolved"] == [reason]
    assert registry.get_sample_value("pointsman_watcher_lookup_failures_total") == 3.0
    assert resolver.names.unresolved == ["a"]


async def test_a_name_with_several_addresses_is_pointed_out() -> None:
    resolver, _, _ = made(Dns(a=["10.0.0.9", "10.0.0.1"]), Clock())
    with capture_logs() as logs:
        await resolver.look_up_due()
    [log] = [log for log in logs if log["event"] == "name.ambiguous"]
    assert (log["used"], log["all"]) == ("10.0.0.1", ["10.0.0.1", "10.0.0.9"])


async def test_names_that_are_new_are_looked_up_without_waiting() -> None:
    dns, clock = Dns(), Clock()
    resolver, _, changed = made(dns, clock)
    running = asyncio.create_task(resolver.run())
    await asyncio.sleep(0)
    dns.answers["a"] = ["10.0.0.1"]
    resolver.follow({"default/a": ("a", "")})
    await changed.wait()
    running.cancel()
