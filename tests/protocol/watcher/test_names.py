"""Endpoints with host names, while DNS changes and fails."""

import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replaced

from services.watcher import reconciler
from services.watcher.app import WatcherService
from shared import tasks
from shared.bus.facts import Upsert
from shared.model import Endpoint
from tests.nats import NatsServer
from tests.protocol.watcher.harness import Reader, reader, replace, watcher
from tests.protocol.watcher.test_eds_file import addresses
from tests.waiting import eventually

TEXT = """
endpoints:
- {name: fixed, address: 10.9.9.9, port: 8000}
- {name: a, address: a.example, port: 8000}
"""


class Dns:
    """A resolver with answers that the test sets; a name without one doesn't exist."""

    def __init__(self, **answers: str) -> None:
        self.answers = {f"{name}.example": address for name, address in answers.items()}

    async def __call__(self, host: str) -> list[str]:
        if host not in self.answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [self.answers[host]]


@asynccontextmanager
async def standby_without_dns(url: str, dns: Dns, **settings: Any) -> AsyncIterator[WatcherService]:
    """A watcher for which no name exists while it is on standby. Once it leads, because the leader's process stood
    still, `dns` answers it, as it answered the leader."""
    standby: list[WatcherService] = []

    async def lookup(host: str) -> list[str]:
        leads = any(service.leadership.leads for service in standby)
        return await (dns if leads else Dns())(host)

    async with watcher(url, lookup, **settings, resolve_interval=1) as service:
        standby.append(service)
        yield service


def address(seen: Reader) -> str:
    endpoint = seen.facts("endpoint").get("default/a")
    return endpoint.address if isinstance(endpoint, Endpoint) else ""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """A watcher's settings."""
    path = tmp_path / "endpoints.yaml"
    path.write_text(TEXT)
    return {"endpoints_file": str(path), "eds_file": str(tmp_path / "eds.json")}


async def test_a_changed_address_reaches_readers_and_envoy(nats: NatsServer, files: dict[str, Any]) -> None:
    dns = Dns(a="10.0.0.1")
    async with reader(nats.url) as seen, watcher(nats.url, dns, **files, resolve_interval=0.05):
        await seen.sees("a", "fixed")
        assert seen.facts("endpoint")["default/a"] == Endpoint(
            id="default/a", name="a", address="10.0.0.1", port=8000, host="a.example"
        )
        dns.answers["a.example"] = "10.0.0.2"
        await eventually(lambda: address(seen) == "10.0.0.2", "the new address")
        await eventually(
            lambda: addresses(Path(files["eds_file"])) == ["10.0.0.2", "10.9.9.9"], "the new address in Envoy's file"
        )
        assert seen.deleted() == set()


async def test_a_watcher_that_starts_while_dns_is_out_adopts_the_addresses_of_the_last_one(
    nats: NatsServer, files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "SLICE", 1)
    monkeypatch.setattr(tasks.in_turns, "__defaults__", (0.0, time.monotonic))  # others run after each endpoint
    async with reader(nats.url) as seen:
        async with watcher(nats.url, Dns(a="10.0.0.1"), **files):
            await seen.sees("a", "fixed")
        events = len(seen.events)
        dns = Dns()
        async with watcher(nats.url, dns, **files, resolve_interval=0.05) as service:
            await eventually(lambda: service.leadership.publisher.published, "a take-over")
            assert address(seen) == "10.0.0.1"
            assert addresses(Path(files["eds_file"])) == ["10.0.0.1", "10.9.9.9"]
            assert service.state()["eds"]["writes"] == 0, "Envoy's file was right all the time"
            dns.answers["a.example"] = "10.0.0.2"
            await eventually(lambda: address(seen) == "10.0.0.2", "the new address")
        assert seen.deleted(events) == set()


async def test_a_standby_without_dns_gives_envoy_the_address_that_the_leader_finds(
    nats: NatsServer, files: dict[str, Any]
) -> None:
    dns = Dns()
    async with watcher(nats.url, dns, endpoints_file=files["endpoints_file"], resolve_interval=0.05) as leader:
        await eventually(lambda: leader.leadership.publisher.published, "a leader")
        async with standby_without_dns(nats.url, dns, **files) as standby:
            await eventually(lambda: standby.reconcilers[0].publishes, "the end of the start")
            assert addresses(Path(files["eds_file"])) == ["10.9.9.9"]
            dns.answers["a.example"] = "10.0.0.1"
            await eventually(
                lambda: addresses(Path(files["eds_file"])) == ["10.0.0.1", "10.9.9.9"], "the leader's address"
            )


async def test_a_standby_without_dns_follows_the_leaders_address_and_keeps_it_in_a_take_over(
    nats: NatsServer, files: dict[str, Any]
) -> None:
    dns = Dns(a="10.0.0.1")
    async with reader(nats.url) as seen:
        async with watcher(nats.url, dns, endpoints_file=files["endpoints_file"], resolve_interval=0.05) as leader:
            await eventually(lambda: address(seen) == "10.0.0.1", "a leader")
            async with watcher(nats.url, Dns(), **files, resolve_interval=0.05) as standby:
                for found in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
                    dns.answers["a.example"] = found
                    await eventually(lambda now=found: addresses(Path(files["eds_file"])) == [now, "10.9.9.9"], found)
                events = len(seen.events)
                await leader.drain()
                await eventually(lambda: standby.leadership.publisher.published, "a take-over")
                await eventually(lambda: seen.replica.epoch == standby.leadership.publisher.epoch, "its announcement")
                assert address(seen) == "10.0.0.3"
        assert seen.deleted(events) == set()
        assert not any(isinstance(event, Upsert) for event in seen.events[events:])


async def test_a_leader_does_not_adopt_what_it_published_itself(
    nats: NatsServer, files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watcher(nats.url, Dns(a="10.0.0.1"), **files) as service:
        await eventually(lambda: service.leadership.publisher.published, "the first address")
    async with watcher(nats.url, Dns(), **files) as service:
        await eventually(lambda: service.leadership.publisher.published, "a take-over")
        names, published = service.reconcilers[0].names, service.leadership.replica.facts
        moved = replaced(service.reconcilers[0].endpoints["default/a"], address="10.0.0.2")
        service.reconcilers[0].resolver.adopt([moved])
        adopted: list[Endpoint] = []

        def adopting(endpoints: Iterable[Endpoint]) -> list[str]:
            adopted.extend(endpoints)
            return []

        monkeypatch.setattr(names, "adopt", adopting)
        await eventually(lambda: moved in published().values(), "the address on the bus")
        assert moved not in adopted


async def test_a_standby_without_dns_adopts_what_was_published_before_it_knew_the_name(
    nats: NatsServer, files: dict[str, Any], tmp_path: Path
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(TEXT)
    dns = Dns(a="10.0.0.1", new="10.0.0.3")
    async with watcher(nats.url, dns, endpoints_file=str(own)) as leader:
        await eventually(lambda: leader.leadership.publisher.published, "a leader")
        async with standby_without_dns(nats.url, dns, **files) as standby:
            more = TEXT + "- {name: new, address: new.example, port: 8000}\n"
            replace(own, more)
            known = standby.leadership.replica.facts
            await eventually(lambda: any(key.endswith("/new") for key in known()), "the new endpoint on the bus")
            replace(Path(files["endpoints_file"]), more)
            await eventually(lambda: addresses(Path(files["eds_file"])) == ["10.0.0.1", "10.9.9.9", "10.0.0.3"])


async def test_a_standby_looks_at_an_endpoint_once_for_each_address_that_it_adopts(
    nats: NatsServer, files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"n{number}" for number in range(100)]
    lines = [f"- {{name: {name}, address: {name}.example, port: 8000}}\n" for name in names]
    replace(Path(files["endpoints_file"]), "endpoints:\n" + "".join(lines))
    dns = Dns()
    async with watcher(nats.url, dns, endpoints_file=files["endpoints_file"], resolve_interval=0.05) as leader:
        await eventually(lambda: leader.leadership.publisher.published, "a leader")
        async with standby_without_dns(nats.url, dns, **files) as standby:
            [of_standby] = standby.reconcilers
            await eventually(lambda: of_standby.publishes, "the end of the start")
            looks, resolve = Counter[str](), of_standby.names.resolve

            def counting(endpoint: Endpoint) -> Endpoint | None:
                looks[endpoint.name] += 1
                return resolve(endpoint)

            monkeypatch.setattr(of_standby.names, "resolve", counting)
            dns.answers |= {f"{name}.example": "10.0.0.1" for name in names}
            await eventually(lambda: len(of_standby.endpoints) == len(names), "all addresses")
    assert max(looks.values()) < 10, "a few more if the connection is made again"
