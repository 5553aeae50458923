"""Two watchers of one cluster: the active one dies or stands still while pods come and go."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shared.bus import Bus, WrongLastSequence
from shared.bus import jetstream as js
from shared.bus.replica_state import Delete, Reset
from shared.bus.subjects import EPOCH, Subjects, fact_key, pool_token
from shared.model import Endpoint
from tests.kubernetes.pods import Pods
from tests.kubernetes.watching import LABELS, POOL, PoolReader, Site, came_back, published, serving_pods
from tests.protocol.watcher.harness import WatcherProcess, by_role
from tests.soak.promises import WATCHER_TAKEN_OVER, measured, soaking
from tests.waiting import eventually

STAYING = ("stays-1", "stays-2", "stays-3")
"""Pods that nobody touches."""
ENDPOINTS = tuple(f"{one}-rank-0" for one in STAYING)
A_WHILE = 2.0 if soaking() else 0.5
"""Seconds for which pods come and go before and after a fault."""


@asynccontextmanager
async def pair(site: Site) -> AsyncIterator[tuple[WatcherProcess, WatcherProcess]]:
    """The active one and the one on standby."""
    config = site.server.kubeconfig(site.directory / "kubeconfig", namespace=site.namespace)
    flags = (
        *("--kubernetes", f"--kubeconfig={config}"),
        *(f"--pool-namespace={site.namespace}", f"--pool-name={POOL}"),
    )
    started: list[WatcherProcess] = []
    try:
        for name in ("first", "second"):
            started.append(WatcherProcess(site.nats.url, name, site.directory / f"{name}.log", *flags))
        for one in started:
            await one.ready()
        yield await by_role(*started)
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


@pytest.mark.soak
@pytest.mark.parametrize("end", ["killed", "frozen"])
async def test_a_standby_takes_over_while_pods_come_and_go_and_no_endpoint_is_lost_or_resurrected(
    site: Site, end: str
) -> None:
    await site.serve(*STAYING)
    async with site.reading() as seen, pair(site) as (leader, _):
        await seen.sees(*ENDPOINTS)
        since, epoch = len(seen.events), seen.replica.epoch
        async with coming_and_going(site.pods):
            await asyncio.sleep(A_WHILE)
            (leader.kill if end == "killed" else leader.pause)()
            ended = time.monotonic()
            await eventually(lambda: seen.replica.epoch > epoch, "a new epoch")
            measured(WATCHER_TAKEN_OVER, time.monotonic() - ended)
            await asyncio.sleep(A_WHILE)
            if end == "frozen":
                leader.resume()
            await asyncio.sleep(A_WHILE)
        expected = await serving_pods(site.admin, site.namespace)
        await eventually(lambda: seen.replica.synced and published(seen) == expected, "the API's list")
        if end == "frozen":
            await leader.ready()
        await asyncio.sleep(A_WHILE)
        assert published(seen) == expected
        assert not lost(seen, site.namespace, since)
        assert not came_back(seen.events)


async def test_what_a_frozen_leader_had_still_to_say_is_refused(site: Site) -> None:
    """It wakes with old events in its socket: to delete a pod that is there again, and to add one that is gone."""
    subjects, token = Subjects(), pool_token(site.namespace, POOL)
    await site.serve(*STAYING)
    async with (
        Bus(site.nats.url, name="stranger") as bus,
        site.reading() as seen,
        pair(site) as (leader, _),
    ):
        await seen.sees(*ENDPOINTS)
        epoch = seen.replica.epoch
        fence = await js.last(bus, subjects.endpoints_bucket, subjects.fact(EPOCH))
        assert fence is not None
        leader.pause()
        await site.pods.delete("stays-1")
        await site.pods.create("late", "10.1.0.9", labels=LABELS)
        await eventually(lambda: seen.replica.epoch > epoch, "a new epoch")
        await seen.sees("late-rank-0", "stays-2-rank-0", "stays-3-rank-0")
        await site.pods.delete("late")
        await site.pods.create("stays-1", "10.1.0.1", labels=LABELS)
        await seen.sees(*ENDPOINTS)
        since = len(seen.events)
        leader.resume()
        await leader.ready()
        await asyncio.sleep(A_WHILE)
        assert seen.ever_had(since) <= {f"{site.namespace}/{one}" for one in ENDPOINTS}
        assert not seen.deleted(since)
        # and if it had sent them a moment before it noticed:
        late = Endpoint(id=f"{site.namespace}/late-rank-0", name="late-rank-0", address="10.1.0.9", port=8000)
        key = subjects.fact(fact_key(token, late))
        headers = {js.EXPECTED_SEQUENCE: str(fence.sequence), js.EXPECTED_SUBJECT: subjects.fact(EPOCH)}
        for more in ({}, {js.OPERATION: "PURGE", "Nats-Rollup": "sub"}):
            with pytest.raises(WrongLastSequence):
                await js.put(bus, key, b"", headers={**headers, **more}, timeout=10.0)
        assert "late-rank-0" not in seen.endpoints
