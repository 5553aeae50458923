"""The real Envoy with our configuration, on the file that a watcher writes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pointsman.local.envoy import STANDALONE, Envoy, EnvoyPlaces, PickerAddress
from services.watcher.app import WatcherService
from services.watcher.settings import WatcherSettings
from tests.nats import NatsServer, free_port
from tests.protocol.watcher.harness import model_servers, replace, watcher
from tests.waiting import eventually

TEXT = "endpoints:\n- {name: a, address: 127.0.0.1, port: 8001}\n- {name: b, address: '::1', port: 8002}\n"


def _places(eds: Path) -> EnvoyPlaces:
    return EnvoyPlaces(
        port=free_port(),
        admin_port=free_port(),
        stats_port=free_port(),
        pickers=(PickerAddress(free_port(), free_port()),),
        eds_file=eds,
        picker_tls=None,
    )


async def test_envoy_has_the_endpoints_of_the_file_and_follows_it(nats: NatsServer, tmp_path: Path) -> None:
    path, eds = tmp_path / "endpoints.yaml", tmp_path / "eds.json"
    path.write_text(TEXT)
    places = _places(eds)

    async def sees(expected: set[str]) -> None:
        async def so() -> bool:
            return await model_servers(places.admin_port) == expected

        await eventually(so, f"Envoy's endpoints {expected}")

    async with watcher(nats.url, endpoints_file=str(path), eds_file=str(eds)), Envoy(tmp_path, STANDALONE, places):
        await sees({"127.0.0.1:8001", "[::1]:8002"})
        replace(path, "endpoints:\n- {name: c, address: localhost, port: 8003}\n")
        await sees({"127.0.0.1:8003"})
        replace(path, "endpoints: []\n")
        await sees(set())
        path.write_text(TEXT)
        await sees({"127.0.0.1:8001", "[::1]:8002"})


@pytest.mark.parametrize("before", [b"", b"what an earlier watcher has written"], ids=["no file", "a file"])
async def test_while_names_are_looked_up_there_is_a_file_and_one_that_was_there_stays(
    tmp_path: Path, before: bytes
) -> None:
    path, eds = tmp_path / "endpoints.yaml", tmp_path / "eds.json"
    path.write_text("endpoints:\n- {name: a, address: a.example, port: 8001}\n")
    if before:
        eds.write_bytes(before)
    answered = asyncio.Event()

    async def lookup(host: str) -> list[str]:
        await answered.wait()
        return ["127.0.0.1"]

    nowhere = (f"nats://127.0.0.1:{free_port()}",)
    files: dict[str, Any] = {"endpoints_file": str(path), "eds_file": str(eds)}
    service = WatcherService(WatcherSettings(nats_url=nowhere, admin_host="127.0.0.1", admin_port=0, **files), lookup)
    life = asyncio.create_task(service.serve())
    try:
        if before:
            await eventually(lambda: service.state()["names"], "the names")
            assert eds.read_bytes() == before
        else:
            await eventually(eds.exists, "the file")
            async with Envoy(tmp_path, STANDALONE, places := _places(eds)):
                assert await model_servers(places.admin_port) == set()
        answered.set()
        await eventually(lambda: b"127.0.0.1" in eds.read_bytes(), "the address")
    finally:
        service.stop()
        assert await life == 0
