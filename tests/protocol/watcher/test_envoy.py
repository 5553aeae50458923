"""The real Envoy with our configuration, on the file that a watcher writes."""

import asyncio
import time
from pathlib import Path

from pointsman.local.envoy import STANDALONE, Envoy, EnvoyPlaces, PickerAddress
from tests.nats import NatsServer, free_port
from tests.protocol.watcher.harness import CONVERGED, model_servers, replace, watcher

TEXT = "endpoints:\n- {name: a, address: 127.0.0.1, port: 8001}\n- {name: b, address: '::1', port: 8002}\n"


async def test_envoy_has_the_endpoints_of_the_file_and_follows_it(nats: NatsServer, tmp_path: Path) -> None:
    path, eds = tmp_path / "endpoints.yaml", tmp_path / "eds.json"
    path.write_text(TEXT)
    places = EnvoyPlaces(
        port=free_port(),
        admin_port=free_port(),
        stats_port=free_port(),
        pickers=(PickerAddress(free_port(), free_port()),),
        eds_file=eds,
        picker_tls=None,
    )

    async def sees(expected: set[str]) -> None:
        deadline = time.monotonic() + CONVERGED
        while (seen := await model_servers(places.admin_port)) != expected:
            assert time.monotonic() < deadline, seen
            await asyncio.sleep(0.02)

    async with watcher(nats.url, endpoints_file=str(path), eds_file=str(eds)), Envoy(tmp_path, STANDALONE, places):
        await sees({"127.0.0.1:8001", "[::1]:8002"})
        replace(path, "endpoints:\n- {name: c, address: localhost, port: 8003}\n")
        await sees({"127.0.0.1:8003"})
        replace(path, "endpoints: []\n")
        await sees(set())
        path.write_text(TEXT)
        await sees({"127.0.0.1:8001", "[::1]:8002"})
