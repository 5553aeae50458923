"""Envoy's file beside a running watcher."""

import asyncio
import json
from pathlib import Path

import pytest

from pointsman.local.envoy import STANDALONE, Envoy, EnvoyPlaces, PickerAddress
from services.watcher.app import WatcherService
from services.watcher.settings import WatcherSettings
from tests.nats import NatsServer, free_port
from tests.protocol.watcher.harness import endpoints_text, model_servers, reader, replace, watcher
from tests.waiting import eventually


def addresses(path: Path) -> list[str]:
    """The addresses in the file; fails when it isn't whole."""
    [assignment] = json.loads(path.read_bytes())["resources"]
    return [
        host["endpoint"]["address"]["socket_address"]["address"]
        for locality in assignment["endpoints"]
        for host in locality["lb_endpoints"]
    ]


A, B, C = "10.0.0.98", "10.0.0.99", "10.0.0.100"


async def test_the_file_is_written_without_nats(tmp_path: Path) -> None:
    """Envoy routes round robin when pickers and NATS are gone; a restart of everything must not end that."""
    path, eds = tmp_path / "endpoints.yaml", tmp_path / "eds.json"
    path.write_text(endpoints_text("a"))
    nowhere = f"nats://127.0.0.1:{free_port()}"
    async with watcher(nowhere, endpoints_file=str(path), eds_file=str(eds)) as service:
        assert addresses(eds) == [A]
        replace(path, endpoints_text("b", "c"))
        await eventually(lambda: addresses(eds) == [B, C], "the new endpoints")
        assert nowhere in service.readiness.reasons()["published"]


async def test_a_file_that_can_not_be_written_is_tried_again_and_said(nats: NatsServer, tmp_path: Path) -> None:
    path, directory = tmp_path / "endpoints.yaml", tmp_path / "run"
    path.write_text(endpoints_text("a"))
    directory.mkdir()
    eds = directory / "eds.json"
    async with reader(nats.url) as seen, watcher(nats.url, endpoints_file=str(path), eds_file=str(eds)) as service:
        directory.rename(tmp_path / "away")
        replace(path, endpoints_text("b"))
        await eventually(lambda: "No such file" in str(service.state()["eds"]["error"]), "the error")
        await seen.sees("b")
        (tmp_path / "away").rename(directory)
        await eventually(lambda: addresses(eds) == [B], "the file")
        await eventually(lambda: service.state()["eds"]["error"] is None, "the error's end")


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

    settings = WatcherSettings(
        nats_url=(f"nats://127.0.0.1:{free_port()}",),
        admin_host="127.0.0.1",
        admin_port=0,
        endpoints_file=str(path),
        eds_file=str(eds),
    )
    picker = PickerAddress(free_port(), free_port())
    places = EnvoyPlaces(
        port=free_port(),
        admin_port=free_port(),
        stats_port=free_port(),
        pickers=(picker,),
        eds_file=eds,
        picker_tls=None,
    )
    service = WatcherService(settings, lookup)
    life = asyncio.create_task(service.serve())
    try:
        if before:
            await eventually(lambda: service.state()["names"], "the names")
            assert eds.read_bytes() == before
        else:
            await eventually(eds.exists, "the file")
            async with Envoy(tmp_path, STANDALONE, places):
                assert await model_servers(places.admin_port) == set()
        answered.set()
        await eventually(lambda: b"127.0.0.1" in eds.read_bytes(), "the address")
    finally:
        service.stop()
        assert await life == 0
