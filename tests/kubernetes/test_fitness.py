"""Of several watchers the one leads that knows what it would publish, and what isn't known is left as it is."""

from typing import Any

import pytest

from tests.kubernetes.watching import LABELS, Site
from tests.proxy import Proxy
from tests.waiting import eventually


@pytest.fixture(autouse=True)
async def _served(site: Site) -> None:
    await site.serve("a")


async def test_a_watcher_that_isnt_loaded_leaves_the_lead_to_one_that_is(site: Site) -> None:
    async with Proxy(site.server.port) as proxy, site.reading() as seen:
        proxy.refuse()
        async with site.watching(id="cut", url=proxy.url("https")) as cut:
            await eventually(lambda: cut.leadership.leads, "nobody else is there")
            assert not cut.readiness.ready
            async with site.watching(id="loaded") as loaded:
                await eventually(lambda: loaded.leadership.leads, "the one that knows")
                await seen.sees("a-rank-0")
                assert not cut.leadership.leads
                assert cut.leadership.state()["fitness"] == [0, 0]
                better = loaded.leadership.lease.owner
                await eventually(lambda: cut.leadership.state()["outdone_by"] == better, "who is better placed")
                await proxy.listen()
                await eventually(lambda: cut.readiness.ready, "ready")
                await site.pods.create("b", "10.1.0.2", labels=LABELS)
                await seen.sees("a-rank-0", "b-rank-0")
                assert loaded.leadership.leads, "equals don't take it from each other"


async def test_a_leader_that_alone_loses_touch_gives_way(site: Site) -> None:
    quick: dict[str, Any] = {"release_lease_after": 1.0}
    async with (
        Proxy(site.server.port) as proxy,
        site.reading() as seen,
        site.watching(id="first", url=proxy.url("https"), **quick) as leader,
    ):
        await eventually(lambda: leader.leadership.leads and leader.readiness.ready, "the first one leads")
        async with site.watching(id="second", **quick) as standby:
            await eventually(lambda: standby.readiness.ready, "a standby")
            await seen.sees("a-rank-0")
            proxy.refuse()
            await site.pods.create("b", "10.1.0.2", labels=LABELS)
            await eventually(lambda: standby.leadership.leads, "the one that is in touch")
            await seen.sees("a-rank-0", "b-rank-0")
            assert not leader.leadership.leads
