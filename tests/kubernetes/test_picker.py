"""What a picker knows of a cluster whose API server is away."""

import pytest

from services.picker import app
from tests.in_process import picker, serving
from tests.kubernetes.watching import POOL, Site
from tests.proxy import Proxy
from tests.waiting import eventually


async def test_without_the_api_server_a_picker_goes_on_with_the_last_set_and_says_how_old_it_is(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "OUTDATED", 1.5)
    await site.serve("a")
    endpoint = f"{site.namespace}/a-rank-0"
    made = picker(site.nats.url, pool_name=POOL, pool_namespace=site.namespace)
    async with (
        Proxy(site.server.port) as proxy,
        site.watching(url=proxy.url("https")),
        serving(made) as service,
    ):
        await eventually(lambda: [*service.view.endpoints] == [endpoint], "the endpoint")
        await eventually(lambda: service.readiness.notes() == {}, "nothing to note")
        proxy.refuse()
        await eventually(lambda: "source" in service.readiness.notes(), "a note of the set's age")

        def heard() -> bool:
            view = service.state()["view"]
            assert view["source_age"] >= 1.5
            return bool(view["age"] < view["source_age"])

        await eventually(heard, "the watcher is heard")
        await eventually(lambda: service.readiness.ready, "ready all the same")
        assert [*service.view.endpoints] == [endpoint]
        await proxy.listen()
        await eventually(lambda: service.readiness.notes() == {}, "the set is confirmed again")
