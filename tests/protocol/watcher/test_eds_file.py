"""Envoy's file beside a running watcher."""

import json
from pathlib import Path

from tests.nats import NatsServer
from tests.protocol.watcher.harness import endpoints_text, reader, replace, watcher
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


async def test_the_file_is_written_without_nats(nats: NatsServer, tmp_path: Path) -> None:
    """Envoy routes round robin when pickers and NATS are gone; a restart of everything must not end that."""
    path, eds = tmp_path / "endpoints.yaml", tmp_path / "eds.json"
    path.write_text(endpoints_text("a"))
    nats.stop()
    async with watcher(nats.url, endpoints_file=str(path), eds_file=str(eds)) as service:
        assert addresses(eds) == [A]
        replace(path, endpoints_text("b", "c"))
        await eventually(lambda: addresses(eds) == [B, C], "the new endpoints")
        assert nats.url in service.readiness.reasons()["published"]
        await nats.start()
        await eventually(lambda: service.readiness.ready, "ready")


async def test_a_watcher_on_standby_writes_its_own_file(nats: NatsServer, tmp_path: Path) -> None:
    path, first, second = tmp_path / "endpoints.yaml", tmp_path / "eds-1.json", tmp_path / "eds-2.json"
    path.write_text(endpoints_text("a"))
    async with (
        reader(nats.url) as seen,
        watcher(nats.url, endpoints_file=str(path), eds_file=str(first)),
        watcher(nats.url, endpoints_file=str(path), eds_file=str(second)),
    ):
        replace(path, endpoints_text("b"))
        await seen.sees("b")
        await eventually(lambda: addresses(first) == addresses(second) == [B], "both files")
        assert first.read_bytes() == second.read_bytes()


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
