"""Watches over real connections, frozen, trickling, closed all the time: what follows equals the server's list. What a
watch makes of what comes: tests/unit/services/watcher/kubernetes/test_watching.py."""

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.watcher.kubernetes.backoff import Timing
from services.watcher.kubernetes.client import Client
from services.watcher.kubernetes.errors import ConnectionFailed, TimedOut
from services.watcher.kubernetes.reflector import Reflector
from services.watcher.kubernetes.resource import Selection
from services.watcher.kubernetes.settings import KubernetesSettings
from tests.fake_kubernetes.cluster import PODS
from tests.fake_kubernetes.reader import Reader, reading
from tests.fake_kubernetes.server import ApiServer
from tests.faults.watcher_kubernetes.conftest import Connect, socket_of
from tests.waiting import eventually

ALL_PODS = Selection(PODS, "default")
QUICK = {"kubernetes_initial_backoff": 0.02, "kubernetes_max_backoff": 0.2, "kubernetes_refused_interval": 0.1}


async def drained(chunks: AsyncIterator[bytes]) -> None:
    async for _ in chunks:
        pass


@asynccontextmanager
async def following(server: ApiServer, connected: Connect, **settings: Any) -> AsyncIterator[Reader]:
    """A reader that has the first list; in the end it has to have what the server has."""
    chosen = {**QUICK, **settings}
    client = await connected(**chosen)
    watch = Reflector(client, ALL_PODS, KubernetesSettings(**chosen), Timing())
    async with reading(watch, server.cluster) as reader:
        await eventually(lambda: watch.in_touch and reader.right, "a list and a watch")
        yield reader
        await eventually(lambda: reader.right, lambda: f"{reader.names} are {sorted(reader.expected())}")


@pytest.mark.parametrize("breaks", [False, True], ids=["ended", "reset"])
async def test_a_watch_closed_all_the_time_during_many_changes_leaves_no_ghost(
    server: ApiServer, connected: Connect, breaks: bool
) -> None:
    """The server closes each watch after 20 ms; every second change is a deletion."""
    server.weather.lasts = 0.02
    server.weather.breaks = breaks
    dice = random.Random(1)
    async with following(server, connected):
        for number in range(300):
            names = [name for _, name in server.cluster.objects]
            if number % 2 and names:
                server.cluster.delete(dice.choice(names))
            else:
                server.cluster.put(f"p{dice.randrange(60)}", number=number)
            if number % 10 == 0:
                await asyncio.sleep(0.005)
        await eventually(lambda: server.watches > 20, "watches")
        server.weather.lasts = None


async def test_inactivity_begins_a_watch_anew(server: ApiServer, connected: Connect) -> None:
    """A server, or a proxy, that keeps the connection and says nothing: a change that it never sent is seen."""
    async with following(server, connected, kubernetes_inactivity_timeout=0.5) as reader:
        server.weather.frozen = True
        server.cluster.put("c")
        await asyncio.sleep(0.05)
        server.weather.frozen = False  # for watches from now on; the frozen one hasn't been woken
    assert reader.reports == ["listed a b", "changed c"]
    assert server.watches >= 2


async def test_a_watch_whose_answer_does_not_begin_is_given_up(server: ApiServer, connected: Connect) -> None:
    """A server that takes connections and is hung: that isn't noticed by the inactivity time-out alone."""
    client = await connected(kubernetes_request_timeout=0.2, kubernetes_inactivity_timeout=60.0)
    server.pause(held := asyncio.Event())
    with pytest.raises(TimedOut, match="didn't begin to answer within 200ms"):
        async with client.stream(ALL_PODS, "102", 300.0):
            pass
    held.set()


async def test_a_half_open_connection_is_probed(server: ApiServer, connected: Connect) -> None:
    """The system is told to find out in time whether the other end is still there."""
    if not hasattr(socket, "TCP_KEEPIDLE"):
        pytest.skip("the options are Linux's")
    client: Client = await connected(kubernetes_keepalive=40.0)
    async with client.stream(ALL_PODS, "102", 30.0) as answer:
        found = socket_of(answer)
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        idle, interval, count = (found.getsockopt(socket.IPPROTO_TCP, option) for option in options)
        assert idle + interval * count == 40


async def test_a_server_that_never_ends_a_watch_is_left_after_the_grace(server: ApiServer, connected: Connect) -> None:
    """One that trickles bytes of a line that never ends, for example: it isn't silent, and says nothing."""
    server.weather.lasts = 3600.0

    async def trickle() -> None:
        while True:
            server.send(b" ")
            await asyncio.sleep(0.05)

    trickling = asyncio.create_task(trickle())
    try:
        client = await connected(kubernetes_watch_grace=0.5, kubernetes_inactivity_timeout=60.0)
        begun = time.monotonic()
        with pytest.raises(TimedOut, match="didn't answer completely"):
            async with client.stream(ALL_PODS, "102", 1.0) as chunks:
                await drained(chunks)
        assert time.monotonic() - begun >= 1.4
    finally:
        trickling.cancel()
        await asyncio.gather(trickling, return_exceptions=True)


async def test_an_event_of_megabytes_is_taken(server: ApiServer, connected: Connect) -> None:
    async with following(server, connected) as reader:
        server.cluster.put("large", comment="x" * 5_000_000)
        await eventually(lambda: "large" in reader.names, "the large object")
    assert reader.lists == 1


async def test_leaving_closes_the_connection(server: ApiServer, connected: Connect) -> None:
    async with following(server, connected):
        assert server.watches_open == 1
    server.cluster.put("wakes the server")
    await eventually(lambda: server.watches_open == 0, "the watch's end")


async def test_closing_the_client_ends_what_is_under_way(server: ApiServer, connected: Connect) -> None:
    client = await connected()

    async def watch() -> None:
        async with client.stream(ALL_PODS, "102", 30.0) as chunks:
            await drained(chunks)

    waiting = asyncio.create_task(watch())
    await eventually(lambda: bool(server.seen), "the watch")
    await asyncio.sleep(0.05)
    await client.close()
    with pytest.raises(ConnectionFailed, match="broke off"):
        await waiting
