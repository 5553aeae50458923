"""A watcher while look-ups of host names hang, and NATS goes and comes."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.nats import NatsServer
from tests.protocol.watcher.harness import reader, watcher
from tests.waiting import TIMEOUT, eventually


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The names that were asked for; those that end in `.slow` hang until the test is over."""
    real, released, asked = socket.getaddrinfo, threading.Event(), set[str]()

    def ask(host: str, *args: Any, **kwargs: Any) -> Any:
        asked.add(host)
        if not host.endswith(".slow"):
            return real("127.0.0.1" if host.endswith(".fast") else host, *args, **kwargs)
        released.wait(2 * TIMEOUT)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    yield asked
    released.set()


def text(*names: str) -> str:
    return "endpoints:\n" + "".join(f"- {{name: {name}, address: {name}, port: 8000}}\n" for name in names)


async def test_a_changed_limit_of_look_ups_takes_effect(nats: NatsServer, tmp_path: Path, asked: set[str]) -> None:
    """New names occupy at most half."""
    path = tmp_path / "endpoints.yaml"
    path.write_text(text("a.fast"))
    hanging = {f"{number}.slow" for number in range(30)}
    async with (
        reader(nats.url) as seen,
        watcher(nats.url, endpoints_file=str(path), resolve_timeout=600.0, max_lookups=4),
    ):
        await seen.sees("a.fast")
        path.write_text(text("a.fast", *hanging))
        await eventually(lambda: len(asked & hanging) >= 2, "the look-ups")
        assert len(asked & hanging) == 2


async def test_names_that_hang_keep_the_watcher_neither_from_nats_nor_from_other_names(
    nats: NatsServer, tmp_path: Path, asked: set[str]
) -> None:
    path = tmp_path / "endpoints.yaml"
    hanging = [f"{number}.slow" for number in range(30)]
    path.write_text(text("a.fast"))
    url = nats.url.replace("127.0.0.1", "localhost")  # to be looked up at each connection
    async with reader(nats.url) as seen, watcher(url, endpoints_file=str(path), resolve_timeout=1.0) as service:
        await seen.sees("a.fast")
        path.write_text(text("a.fast", *hanging))
        await eventually(lambda: asked.issuperset(hanging), "the look-ups")
        connections = service.bus.connections
        nats.kill()
        await nats.start()
        await eventually(lambda: service.bus.connections > connections, "a connection")
        path.write_text(text("a.fast", "b.fast", *hanging))
        await seen.sees("a.fast", "b.fast")
