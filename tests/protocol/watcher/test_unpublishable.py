"""Facts that NATS doesn't take: the watcher keeps them back, says so, and publishes the rest."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.nats import NatsServer, nats_server
from tests.protocol.watcher.harness import reader, replace, watcher
from tests.waiting import eventually


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """A server that takes messages of 64 KiB."""
    async with nats_server(tmp_path / "nats", config="max_payload: 65536") as server:
        yield server


def text(**labels: str) -> str:
    return "endpoints:\n" + "".join(
        f"- {{name: {name}, address: 10.0.0.{ord(name)}, port: 8000, labels: {{a: {label}}}}}\n"
        for name, label in labels.items()
    )


async def test_a_fact_that_is_too_large_costs_itself(nats: NatsServer, tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(text(a="fine", b="x" * 100_000))
    async with reader(nats.url) as seen, watcher(nats.url, endpoints_file=str(path)) as service:
        await seen.sees("a")
        await eventually(lambda: service.readiness.ready, lambda: service.readiness)
        note = service.readiness.notes()["facts"]
        assert note.startswith("default_default.endpoint.default/b: it makes a message of 1001")
        assert service.registry.get_sample_value("pointsman_watcher_unpublishable_facts") == 1.0
        replace(path, text(a="fine", b="fine", c="fine"))
        await seen.sees("a", "b", "c")
        replace(path, text(a="fine", b="x" * 100_000, c="changed"))
        await eventually(lambda: service.readiness.notes().get("facts"), "a note")
        replace(path, text(a="fine", b="x" * 100_000))
        await seen.sees("a", "b")  # as it was: what is on the bus is kept
