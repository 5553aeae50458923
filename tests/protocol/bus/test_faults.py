"""After every fault of NATS the reader's view is the owner's set again, at most 2 s after the server is back.

Between the fault and that moment the view stays as it was: it ages, nothing is lost, and nothing that is gone comes
back (no ghost endpoints).
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from shared.bus import jetstream as js
from shared.bus.connection import Bus
from shared.bus.errors import LostLeadership
from shared.bus.publisher import FactPublisher
from shared.bus.replica import Replica
from shared.model import Fact
from tests.nats import NatsServer, free_port, nats_server
from tests.protocol.bus.conftest import POOL, SUBJECTS, Connect, View, endpoints, leading, numbered, reading
from tests.soak.promises import NATS_KILLED, NATS_ROLLED_BACK, RECONNECTING, Promise, measured, soaking
from tests.waiting import TIMEOUT, eventually

CLIENTS = 100 if soaking() else 20


@dataclass
class System:
    """One owner and one reader that agree on 200 facts, over a server that a test may break."""

    server: NatsServer
    watcher: Bus
    picker: Bus
    publisher: FactPublisher
    leader: asyncio.Task[None]
    replica: Replica
    view: View

    def update(self, facts: dict[str, Fact]) -> None:
        self.publisher.update(facts, [POOL])

    async def converges(self, facts: dict[str, Fact]) -> None:
        def converged() -> bool:
            return self.view.facts == facts and self.replica.age() < 0.6

        await eventually(converged, lambda: (self.watcher, self.picker, self.publisher, self.replica))
        assert self.replica.facts() == facts

    async def starts_and_converges(self, facts: dict[str, Fact], promise: Promise) -> None:
        before = (self.picker.connections, self.publisher.establishments)
        await self.server.start()
        began = time.monotonic()
        await eventually(lambda: self.picker.connections > before[0] and self.publisher.establishments > before[1])
        await self.converges(facts)
        measured(promise, time.monotonic() - began)

    async def both_disconnected(self) -> None:
        await eventually(lambda: not self.watcher.connected and not self.picker.connected)


@pytest.fixture
async def system(server: NatsServer, connect: Connect) -> AsyncIterator[System]:
    watcher, picker = await connect("watcher"), await connect("picker")
    publisher = FactPublisher(watcher, SUBJECTS, "w1")
    async with leading(publisher) as leader, reading(picker) as (replica, view):
        publisher.update(numbered(200), [POOL])
        system = System(server, watcher, picker, publisher, leader, replica, view)
        await system.converges(numbered(200))
        view.clear()
        yield system


@pytest.mark.soak
@pytest.mark.parametrize("wiped", [False, True], ids=["store kept", "wiped"])
async def test_killed_and_restarted(system: System, wiped: bool) -> None:
    system.server.kill()
    await system.both_disconnected()
    if wiped:
        system.server.wipe()
    changed = numbered(150) | endpoints("new")
    system.update(changed)
    await asyncio.sleep(0.2)
    assert system.view.facts == numbered(200), "the view stays while NATS is away"
    assert system.replica.readiness() is None
    await system.starts_and_converges(changed, NATS_KILLED)


@pytest.mark.soak
async def test_killed_and_rolled_back_to_an_older_store(system: System, connect: Connect) -> None:
    """What was deleted after the older state must not come back; also not for a reader that starts only now."""
    copy = system.server.directory / "older"
    system.server.stop()
    system.server.store.rename(copy)
    await system.server.start()
    changed = numbered(100) | endpoints("new")
    system.update(changed)
    await system.converges(changed)
    system.server.stop()
    system.server.wipe()
    copy.rename(system.server.store)
    system.view.clear()
    await system.starts_and_converges(changed, NATS_ROLLED_BACK)
    assert not (numbered(200).keys() - changed.keys()) & system.view.seen
    async with reading(await connect()) as (replica, view):
        await eventually(lambda: view.facts == changed, what=lambda: replica)


@pytest.mark.soak
async def test_many_clients_reconnect_at_once(tmp_path: Path) -> None:
    """The server has as many connections and subscriptions afterwards, and no consumers."""
    http = free_port()
    async with (
        AsyncExitStack() as stack,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{http}", timeout=TIMEOUT) as monitor,
    ):
        server = await stack.enter_async_context(nats_server(tmp_path, config=f'http: "127.0.0.1:{http}"'))

        async def bus(name: str) -> Bus:
            made = await stack.enter_async_context(Bus(server.url, name=name))
            await made.wait_connected(TIMEOUT)
            return made

        async def load() -> tuple[int, int, int]:
            general = (await monitor.get("/varz")).json()
            return general["connections"], general["subscriptions"], (await monitor.get("/jsz")).json()["consumers"]

        publisher = FactPublisher(await bus("watcher"), SUBJECTS, "w1")
        await stack.enter_async_context(leading(publisher))
        facts, changed = numbered(10), numbered(5) | endpoints("new")  # all clients share this process
        publisher.update(facts, [POOL])
        views = [
            (await stack.enter_async_context(reading(await bus(f"picker-{number}"))))[1] for number in range(CLIENTS)
        ]
        await eventually(lambda: all(view.facts == facts for view in views))
        before = await load()
        server.kill()
        publisher.update(changed, [POOL])
        await server.start()
        began = time.monotonic()
        await eventually(lambda: all(view.facts == changed for view in views))
        measured(RECONNECTING, time.monotonic() - began)

        async def as_before() -> bool:
            after = await load()
            assert after == before
            return True

        await eventually(as_before)


async def test_stopped_and_continued_within_the_ping_time(system: System) -> None:
    """The connections survive; acknowledgements come late, and everything is published again."""
    system.server.pause()
    system.update(numbered(150))
    await asyncio.sleep(1.2)
    changed = numbered(100) | endpoints("new")
    system.update(changed)
    system.server.resume()
    await system.converges(changed)
    assert system.publisher.establishments >= 2


@pytest.mark.parametrize("way", ["deleted", "made again", "purged"])
async def test_bucket_deleted_or_emptied_by_somebody(system: System, connect: Connect, way: str) -> None:
    """Somebody subscribes to its subject, so that puts to a missing one aren't refused: they hang. Made again as
    `nats kv add endpoints` does, the owner adapts it. The reader keeps its view meanwhile."""
    await (await connect()).subscribe("$KV.endpoints.>", lambda message: None)
    await js.api(system.picker, f"STREAM.{'PURGE' if way == 'purged' else 'DELETE'}.KV_endpoints", {})
    if way == "made again":
        await js.ensure_bucket(system.picker, js.Bucket(name="endpoints", storage="file"))
    else:
        await eventually(lambda: system.publisher.establishments >= 2, lambda: system.publisher)
        assert system.view.facts == numbered(200)
    changed = numbered(150) | endpoints("new")
    system.update(changed)
    await system.converges(changed)
    assert len(await js.snapshot(system.picker, "endpoints", "$KV.endpoints.>")) >= 153


async def test_the_owner_dies_while_nats_is_away_and_a_standby_takes_over(system: System, connect: Connect) -> None:
    system.server.kill()
    await system.both_disconnected()
    system.leader.cancel()
    system.server.wipe()
    await system.server.start()
    standby = FactPublisher(await connect("standby"), SUBJECTS, "w2")
    changed = numbered(100)
    async with leading(standby):
        standby.update(changed, [POOL])
        await system.converges(changed)


async def test_two_leaders_end_with_one_and_the_view_is_that_ones_set(connect: Connect) -> None:
    first = FactPublisher(await connect(), SUBJECTS, "w1")
    second = FactPublisher(await connect(), SUBJECTS, "w2")
    sets = {"w1": numbered(50), "w2": numbered(70)}
    async with reading(await connect()) as (replica, view), leading(first) as one, leading(second) as two:
        first.update(sets["w1"], [POOL])
        second.update(sets["w2"], [POOL])
        done, _ = await asyncio.wait([one, two], timeout=TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        assert isinstance(next(iter(done)).exception(), LostLeadership)
        winner = second if one.done() else first
        await eventually(lambda: view.facts == sets[winner.owner], what=lambda: (first, second, replica))


async def test_a_stopped_reader_catches_up(system: System) -> None:
    """The reader's connection is cut and refused for a while: its side of a network partition."""
    changed = numbered(100) | endpoints("new")
    await system.picker.close()
    system.update(changed)
    await eventually(lambda: system.publisher.published, lambda: system.publisher)
    assert system.view.facts == numbered(200)
    await system.picker.start()
    await system.converges(changed)
