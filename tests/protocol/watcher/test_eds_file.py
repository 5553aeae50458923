"""Envoy's file beside a running watcher."""

# ruff: noqa: ASYNC240 - the files are the test's own, and nothing waits for the moment that they take

import asyncio
import json
from pathlib import Path

from tests.nats import NatsServer, free_port
from tests.protocol.watcher.harness import endpoints_text, eventually, reader, replace, watcher


def addresses(path: Path) -> list[str]:
    """The addresses in the file; fails when it isn't whole."""
    [assignment] = json.loads(path.read_bytes())["resources"]
    return [
        host["endpoint"]["address"]["socket_address"]["address"]
        for locality in assignment["endpoints"]
        for host in locality["lb_endpoints"]
    ]


A, B, C = "10.0.0.98", "10.0.0.99", "10.0.0.100"


async def test_the_file_follows_the_endpoints(nats: NatsServer, tmp_path: Path) -> None:
    path, eds = tmp_path / "endpoints.yaml", tmp_path / "eds.json"
    path.write_text(endpoints_text("a"))
    async with watcher(nats.url, endpoints_file=str(path), eds_file=str(eds)):
        assert addresses(eds) == [A]
        replace(path, endpoints_text("a", "b"))
        await eventually(lambda: addresses(eds) == [A, B], "two endpoints")
        replace(path, "endpoints: []\n")
        await eventually(lambda: addresses(eds) == [], "no endpoints")
        assert [one.name for one in tmp_path.iterdir() if "eds" in one.name] == ["eds.json"]


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


async def test_nobody_ever_reads_a_part_of_the_file(nats: NatsServer, tmp_path: Path) -> None:
    path, eds = tmp_path / "endpoints.yaml", tmp_path / "eds.json"
    path.write_text(endpoints_text("a"))
    readings = 0
    seen: set[int] = set()

    def read_on() -> None:
        nonlocal readings
        while not done.is_set():
            seen.add(len(addresses(eds)))
            readings += 1

    done = asyncio.Event()
    async with watcher(nats.url, endpoints_file=str(path), eds_file=str(eds)) as service:
        reading = asyncio.create_task(asyncio.to_thread(read_on))
        for count in range(1, 16):
            path.write_text("endpoints:\n" + "".join(
                f"- {{name: e{index}, address: 10.1.{count}.{index % 250}, port: {8000 + index}}}\n"
                for index in range(20 * count)
            ))  # fmt: skip
            await eventually(lambda: len(service.state()["endpoints"]) == 20 * count, "the change")  # noqa: B023
        await eventually(lambda: len(addresses(eds)) == 300, "the last file")
        done.set()
        await reading
    assert readings > 0
    assert seen <= {1, *range(20, 301, 20)}


async def test_a_file_that_somebody_removed_is_written_again(nats: NatsServer, tmp_path: Path) -> None:
    path, eds = tmp_path / "endpoints.yaml", tmp_path / "eds.json"
    path.write_text(endpoints_text("a"))
    async with watcher(nats.url, endpoints_file=str(path), eds_file=str(eds)):
        eds.unlink()
        await eventually(eds.exists, "the file")
        assert addresses(eds) == [A]


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
