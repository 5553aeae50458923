"""A picker whose pool serves only models that it names, behind a proxy that fails open."""

from typing import Any

import grpc

from services.picker.state.proxy_failure_mode import HEADER
from services.picker.transport.ext_proc import SERVICE
from tests.in_process import picker, serving
from tests.nats import NatsServer
from tests.protocol.collector.harness import Owner, endpoint
from tests.unit.services.picker.extproc.proxy import LEAN, headers
from tests.waiting import eventually


async def test_a_proxy_that_says_that_it_fails_open_is_a_note(nats: NatsServer, owner: Owner) -> None:
    service = picker(nats.url, require_named_models=True)
    async with serving(service):
        await owner.publish([endpoint("a", 8000)])
        await eventually(lambda: len(service.view.layout) == 1, "the endpoint")
        assert "proxy" not in service.readiness.notes()
        channel: Any = grpc.aio.insecure_channel(f"127.0.0.1:{service.grpc.port}")
        async with channel:
            stream = channel.stream_stream(f"/{SERVICE}/Process")(metadata=[(HEADER, "open")])
            await stream.write(headers({":method": "GET", ":path": "/"}, modes=LEAN).SerializeToString())
            await stream.read()
        assert "standalone-closed.yaml doesn't" in service.readiness.notes()["proxy"]
