"""Of several watchers the one leads that knows what it would publish, and what isn't known is left as it is."""

from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.api import Api
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.pods import Pods
from tests.kubernetes.proxy import Proxy
from tests.kubernetes.watching import LABELS, pool_document, reading, watching
from tests.nats import NatsServer
from tests.protocol.watcher.harness import eventually

pytestmark = pytest.mark.usefixtures("kubernetes_peers", "patient_lease")

HANDED_OVER = 20.0
"""Seconds in which a watcher that is worse placed gives way, and the other one publishes."""


@pytest.fixture
async def served(admin: Api, namespace: str, pods: Pods) -> None:
    """A pool with the pod a."""
    await admin.create(pool_document(), namespace)
    await pods.create("a", "10.1.0.1", labels=LABELS)


@pytest.mark.usefixtures("served")
async def test_a_watcher_that_isnt_loaded_leaves_the_lead_to_one_that_is(
    apiserver: ApiServer, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    async with Proxy(apiserver.port) as proxy, reading(nats.url, namespace) as seen:
        proxy.refuse()
        (tmp_path / "cut").mkdir()
        kubeconfig = str(apiserver.kubeconfig(tmp_path / "cut" / "config", namespace=namespace, url=proxy.url))
        async with watching(nats.url, apiserver, namespace, tmp_path, id="cut", kubeconfig=kubeconfig) as cut:
            await eventually(lambda: cut.leadership.leads, "nobody else is there")
            assert not cut.readiness.ready
            async with watching(nats.url, apiserver, namespace, tmp_path, id="loaded") as loaded:
                await eventually(lambda: loaded.leadership.leads, "the one that knows", HANDED_OVER)
                await seen.sees("a-rank-0")
                assert not cut.leadership.leads
                assert cut.leadership.state()["fitness"] == [0, 0]
                better = loaded.leadership.lease.owner
                await eventually(lambda: cut.leadership.state()["outdone_by"] == better, "who is better placed")
                await proxy.listen()
                await eventually(lambda: cut.readiness.ready, "ready", HANDED_OVER)
                await pods.create("b", "10.1.0.2", labels=LABELS)
                await seen.sees("a-rank-0", "b-rank-0")
                assert loaded.leadership.leads, "equals don't take it from each other"


@pytest.mark.usefixtures("served")
async def test_a_leader_that_alone_loses_touch_gives_way(
    apiserver: ApiServer, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    quick: dict[str, Any] = {"give_way_after": 1.0}
    async with Proxy(apiserver.port) as proxy, reading(nats.url, namespace) as seen:
        (tmp_path / "first").mkdir()
        kubeconfig = str(apiserver.kubeconfig(tmp_path / "first" / "config", namespace=namespace, url=proxy.url))
        first = watching(nats.url, apiserver, namespace, tmp_path, id="first", kubeconfig=kubeconfig, **quick)
        second = watching(nats.url, apiserver, namespace, tmp_path, id="second", **quick)
        async with first as leader:
            await eventually(lambda: leader.leadership.leads and leader.readiness.ready, "the first one leads")
            async with second as standby:
                await eventually(lambda: standby.readiness.ready, "a standby")
                await seen.sees("a-rank-0")
                proxy.refuse()
                await pods.create("b", "10.1.0.2", labels=LABELS)
                await eventually(lambda: standby.leadership.leads, "the one that is in touch", HANDED_OVER)
                await seen.sees("a-rank-0", "b-rank-0")
                assert not leader.leadership.leads


@pytest.mark.usefixtures("served")
async def test_nobody_gives_way_when_nobody_is_in_touch(
    apiserver: ApiServer, namespace: str, nats: NatsServer, tmp_path: Path
) -> None:
    async with Proxy(apiserver.port) as proxy, reading(nats.url, namespace) as seen:
        (tmp_path / "proxied").mkdir()
        kubeconfig = str(apiserver.kubeconfig(tmp_path / "proxied" / "config", namespace=namespace, url=proxy.url))
        more: dict[str, Any] = {"give_way_after": 0.5, "kubeconfig": kubeconfig}
        first = watching(nats.url, apiserver, namespace, tmp_path, id="first", **more)
        second = watching(nats.url, apiserver, namespace, tmp_path, id="second", **more)
        async with first as one, second as other:
            await eventually(lambda: one.readiness.ready and other.readiness.ready, "both ready")
            before = one.leadership.lease.acquisitions, other.leadership.lease.acquisitions
            proxy.refuse()
            await eventually(lambda: seen.replica.source_age() > 4.0, "an age", HANDED_OVER)
            assert (one.leadership.lease.acquisitions, other.leadership.lease.acquisitions) == before
            assert seen.endpoints == ["a-rank-0"]
