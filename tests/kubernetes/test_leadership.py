"""Two watchers of one cluster: the active one dies, ends or stands still while pods come and go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shared.bus import Bus, WrongLastSequence
from shared.bus import jetstream as js
from shared.bus.replica_state import Delete, Reset
from shared.bus.subjects import EPOCH, Subjects, fact_key, pool_token
from shared.model import Endpoint
from tests.kubernetes.api import Api
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.pods import Pods
from tests.kubernetes.watching import (
    LABELS,
    POOL,
    PoolReader,
    came_back,
    pool_document,
    published,
    reading,
    serving_pods,
)
from tests.nats import NatsServer
from tests.protocol.watcher.harness import WatcherProcess, eventually
from tests.stalls import stopwatch

pytestmark = [pytest.mark.usefixtures("kubernetes_peers"), pytest.mark.serial]

TAKE_OVER = 3.0
"""Seconds from the end of the active watcher to the first publication of another."""
STAYING = ("stays-1", "stays-2", "stays-3")
"""Pods that nobody touches."""
ENDPOINTS = tuple(f"{one}-rank-0" for one in STAYING)


@asynccontextmanager
async def pair(
    nats: NatsServer, server: ApiServer, namespace: str, directory: Path
) -> AsyncIterator[tuple[WatcherProcess, WatcherProcess]]:
    """The active one and the one on standby."""
    config = server.kubeconfig(directory / "kubeconfig", namespace=namespace)
    flags = (
        *("--kubernetes", f"--kubeconfig={config}"),
        *(f"--pool-namespace={namespace}", f"--pool-name={POOL}"),
    )
    started: list[WatcherProcess] = []
    try:
        for name in ("first", "second"):
            started.append(WatcherProcess(nats.url, directory / f"{name}.log", f"--id={name}", *flags))
            await started[-1].ready()
        leader, standby = started
        assert (await leader.leads(), await standby.leads()) == (True, False)
        yield leader, standby
    finally:
        for one in started:
            one.close()


@asynccontextmanager
async def coming_and_going(pods: Pods) -> AsyncIterator[None]:
    """Pods are made and deleted all the time; names and addresses are used again."""

    over = False

    async def churn(name: str, address: str) -> None:
        while not over:
            await pods.create(name, address, labels=LABELS)
            await asyncio.sleep(0.15)
            await pods.delete(name)
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        for at in range(1, 5):
            group.create_task(churn(f"goes-{at}", f"10.4.0.{at}"))
        try:
            yield
        finally:
            over = True


def lost(seen: PoolReader, namespace: str, since: int) -> set[str]:
    """Those of the pods that stay which events from a position on took away, if only for a moment."""
    token = pool_token(namespace, POOL)
    keys = {
        fact_key(token, Endpoint(id=f"{namespace}/{name}", name=name, address="10.0.0.1", port=1)): name
        for name in ENDPOINTS
    }
    gone: set[str] = set()
    for event in seen.events[since:]:
        if isinstance(event, Reset):
            gone |= {name for key, name in keys.items() if key not in event.facts}
        elif isinstance(event, Delete) and event.key in keys:
            gone.add(keys[event.key])
    return gone


@pytest.fixture
async def staying(admin: Api, namespace: str, pods: Pods) -> None:
    """The pool with pods that nobody touches."""
    await admin.create(pool_document(), namespace)
    for at, name in enumerate(STAYING, 1):
        await pods.create(name, f"10.1.0.{at}", labels=LABELS)


@pytest.mark.usefixtures("staying")
@pytest.mark.parametrize("end", ["killed", "stopped", "frozen"])
async def test_a_standby_takes_over_while_pods_come_and_go_and_no_endpoint_is_lost_or_resurrected(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path, end: str
) -> None:
    async with (
        reading(nats.url, namespace) as seen,
        pair(nats, apiserver, namespace, tmp_path) as (leader, standby),
    ):
        await seen.sees(*ENDPOINTS)
        since, epoch = len(seen.events), seen.replica.epoch
        async with coming_and_going(pods):
            await asyncio.sleep(0.5)
            if end == "killed":
                leader.kill()
            elif end == "frozen":
                leader.pause()
            async with stopwatch() as watch:
                if end == "stopped":
                    assert await leader.stop() == 0
                await eventually(lambda: seen.replica.epoch > epoch, "a new epoch")
                assert watch.seconds <= TAKE_OVER
            await asyncio.sleep(0.5)
            if end == "frozen":
                leader.resume()
            await asyncio.sleep(1.0)
        assert await standby.leads()
        expected = await serving_pods(admin, namespace)
        await eventually(lambda: seen.replica.synced and published(seen) == expected, "the API's list")
        if end == "frozen":
            await leader.ready()
            assert not await leader.leads()
        await asyncio.sleep(0.5)
        assert published(seen) == expected
        assert not lost(seen, namespace, since)
        assert not came_back(seen.events)


@pytest.mark.usefixtures("staying")
async def test_what_a_frozen_leader_had_still_to_say_is_refused(
    apiserver: ApiServer, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    """It wakes with old events in its socket: to delete a pod that is there again, and to add one that is gone."""
    subjects, token = Subjects(), pool_token(namespace, POOL)
    async with (
        Bus(nats.url, name="stranger") as bus,
        reading(nats.url, namespace) as seen,
        pair(nats, apiserver, namespace, tmp_path) as (leader, standby),
    ):
        await seen.sees(*ENDPOINTS)
        epoch = seen.replica.epoch
        fence = await js.last(bus, subjects.endpoints_bucket, subjects.fact(EPOCH))
        assert fence is not None
        leader.pause()
        await pods.delete("stays-1")
        await pods.create("late", "10.1.0.9", labels=LABELS)
        await eventually(lambda: seen.replica.epoch > epoch, "a new epoch", timeout=TAKE_OVER + 2.0)
        await seen.sees("late-rank-0", "stays-2-rank-0", "stays-3-rank-0")
        await pods.delete("late")
        await pods.create("stays-1", "10.1.0.1", labels=LABELS)
        await seen.sees(*ENDPOINTS)
        new, since = seen.replica.epoch, len(seen.events)
        leader.resume()
        await asyncio.sleep(1.5)
        assert (await leader.leads(), await standby.leads()) == (False, True)
        assert seen.events[since:] == []
        assert seen.replica.epoch == new
        # and if it had sent them a moment before it noticed:
        late = Endpoint(id=f"{namespace}/late-rank-0", name="late-rank-0", address="10.1.0.9", port=8000)
        key = subjects.fact(fact_key(token, late))
        headers = {js.EXPECTED_SEQUENCE: str(fence.sequence), js.EXPECTED_SUBJECT: subjects.fact(EPOCH)}
        for more in ({}, {js.OPERATION: "PURGE", "Nats-Rollup": "sub"}):
            with pytest.raises(WrongLastSequence):
                await js.put(bus, key, b"", headers={**headers, **more}, timeout=10.0)
        assert seen.events[since:] == []
