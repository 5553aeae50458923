"""Processes that were given one id by mistake: they work, as far as that goes, and say so."""

from pathlib import Path

from prometheus_client import generate_latest

from shared.service import Service
from tests.in_process import picker, serving
from tests.nats import nats_server
from tests.protocol.collector.harness import collector
from tests.waiting import eventually


def counted(service: Service) -> float:
    lines = generate_latest(service.registry).decode().splitlines()
    [value] = [float(line.split()[-1]) for line in lines if line.startswith("pointsman_bus_namesake_messages_total ")]
    return value


async def test_two_pickers_with_one_id_tell_of_it(tmp_path: Path) -> None:
    async with (
        nats_server(tmp_path) as nats,
        serving(picker(nats.url, id="p1")) as first,
        serving(picker(nats.url, id="p2")) as other,
    ):
        async with serving(picker(nats.url, id="p1")) as second:
            await eventually(lambda: "id" in first.readiness.notes() and "id" in second.readiness.notes(), "told")
            assert first.readiness.notes()["id"] == "another picker has the id 'p1' too; each needs an --id of its own"
            assert counted(first) >= 3
            assert list(first.view.in_flight.peers()) == ["p2"]
        await eventually(lambda: "id" not in first.readiness.notes(), "forgotten once the other has gone")
        assert "id" not in other.readiness.notes()
        assert counted(other) == 0


async def test_two_collectors_with_one_id_tell_of_it(tmp_path: Path) -> None:
    async with (
        nats_server(tmp_path) as nats,
        collector(nats.url, id="c1") as first,
        collector(nats.url, id="c2") as other,
    ):
        async with collector(nats.url, id="c1") as second:
            await eventually(lambda: "id" in first.readiness.notes() and "id" in second.readiness.notes(), "told")
            told = "another collector has the id 'c1' too; each needs an --id of its own"
            assert first.readiness.notes()["id"] == told
            await eventually(lambda: counted(first) >= 3, "counted")
            await eventually(lambda: first.members.ids == ("c1", "c2"), "the other one")
        assert "id" not in other.readiness.notes()
        assert counted(other) == 0
