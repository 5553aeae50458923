"""What a picker knows of a cluster whose API server is away."""

from pathlib import Path

import pytest

from services.picker import app
from tests.in_process import picker, serving
from tests.kubernetes.conftest import OwnApiServer
from tests.kubernetes.pods import Pods
from tests.kubernetes.watching import LABELS, POOL, pool_document, watching
from tests.nats import NatsServer
from tests.protocol.watcher.harness import eventually


async def test_without_the_api_server_a_picker_goes_on_with_the_last_set_and_says_how_old_it_is(
    own_apiserver: OwnApiServer, nats: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "OUTDATED", 1.5)
    server = await own_apiserver()
    async with server.client() as admin:
        namespace = await admin.create_namespace()
        await admin.create(pool_document(), namespace)
        await Pods(admin, namespace).create("a", "10.1.0.1", labels=LABELS)
    made = picker(nats.url, pool_name=POOL, pool_namespace=namespace)
    async with watching(nats.url, server, namespace, tmp_path), serving(made) as service:
        await eventually(lambda: [*service.view.endpoints] == [f"{namespace}/a-rank-0"], "the endpoint")
        await eventually(lambda: service.readiness.notes() == {}, "nothing to note")
        await server.kill()
        await eventually(lambda: "source" in service.readiness.notes(), "a note of the set's age")
        assert service.readiness.ready
        assert [*service.view.endpoints] == [f"{namespace}/a-rank-0"]
        assert service.state()["view"]["source_age"] >= 1.5
        assert service.state()["view"]["age"] < 2.0
        await server.start()
        await eventually(lambda: service.readiness.notes() == {}, "the set is confirmed again", timeout=60.0)
