"""What a picker knows of a cluster whose API server is away."""

from pathlib import Path

import pytest

from services.picker import app
from services.picker.app import PickerService
from services.picker.settings import PickerSettings
from tests.in_process import serving
from tests.kubernetes.conftest import OwnApiServer
from tests.kubernetes.pods import Pods
from tests.kubernetes.watching import LABELS, POOL, pool_document, watching
from tests.nats import NatsServer
from tests.protocol.watcher.harness import eventually


async def test_without_the_api_server_a_picker_goes_on_with_the_last_set_and_says_how_old_it_is(
    own_apiserver: OwnApiServer, nats: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "OUTDATED", 0.5)
    server = await own_apiserver()
    async with server.client() as admin:
        namespace = await admin.create_namespace()
        await admin.create(pool_document(), namespace)
        await Pods(admin, namespace).create("a", "10.1.0.1", labels=LABELS)
    settings = PickerSettings(
        nats_url=(nats.url,),
        pool_name=POOL,
        pool_namespace=namespace,
        admin_host="127.0.0.1",
        admin_port=0,
        grpc_host="127.0.0.1",
        grpc_port=0,
        grpc_health_port=0,
        secure_serving=False,
        drain_delay=0.0,
    )
    async with watching(nats.url, server, namespace, tmp_path), serving(PickerService(settings)) as picker:
        await eventually(lambda: [*picker.view.endpoints] == [f"{namespace}/a-rank-0"], "the endpoint")
        assert picker.readiness.notes() == {}
        await server.kill()
        await eventually(lambda: "source" in picker.readiness.notes(), "a note of the set's age")
        assert picker.readiness.ready
        assert [*picker.view.endpoints] == [f"{namespace}/a-rank-0"]
        assert picker.state()["view"]["source_age"] >= 0.5
        assert picker.state()["view"]["age"] < 2.0
        await server.start()
        await eventually(lambda: picker.readiness.notes() == {}, "the set is confirmed again", timeout=20.0)
