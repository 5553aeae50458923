"""A watcher with a cluster of NATS servers, which may lose any one of them."""

from pathlib import Path
from typing import Any

from shared.bus import Bus
from shared.bus import jetstream as js
from tests.nats import nats_cluster
from tests.protocol.watcher.harness import endpoints_text, reader, replace, watcher
from tests.waiting import eventually


async def test_facts_and_lease_are_on_as_many_servers_as_the_setting_says(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(endpoints_text("a"))
    async with nats_cluster(tmp_path / "nats") as servers:
        urls = tuple(server.url for server in servers)
        files: dict[str, Any] = {"endpoints_file": str(path), "nats_url": urls, "nats_replicas": 3}
        async with reader(servers[2].url) as seen, watcher(servers[0].url, **files) as service:
            await seen.sees("a")
            async with Bus([servers[1].url], name="looker") as bus:
                await bus.wait_connected(60.0)
                for bucket in ("endpoints", "leases"):
                    info = await js.api(bus, f"STREAM.INFO.KV_{bucket}", {})
                    assert info.config["num_replicas"] == 3, bucket
            servers[0].kill()
            replace(path, endpoints_text("a", "b"))
            await seen.sees("a", "b")
            await eventually(lambda: service.readiness.ready, "ready again")
