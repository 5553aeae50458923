"""The whole system under load, to have its parts stopped, killed and paused."""

import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio
import yaml

from pointsman.local.envoy import GATEWAY, STANDALONE, load
from pointsman.local.process import Process
from pointsman.local.services import ServiceProcess
from pointsman.local.stack import CONFIGURATION, LocalStack, StackPlan, simulators
from tests.certificates import Authority
from tests.faults.system.load import Load
from tests.protocol.envoy.conftest import unhurried
from tests.protocol.system.conftest import in_flight
from tests.soak.promises import PICKER_KILLED, WATCHER_KILLED, measured
from tests.waiting import eventually

ATTRIBUTE = "WaitingQueueSize/core-metrics-extractor"
PAIR, OTHER = "tls.crt", "other.crt"
"""Certificates of the gateway's pickers: the one that they have, and one to renew it with."""
LEADER = "the watcher that leads"
Signal = Literal["SIGKILL", "SIGTERM"]


OURS = CONFIGURATION.read_text(encoding="utf-8") + "dataLayer: {staleMetrics: {policy: lastKnown}}\n"
"""The configuration that `pointsman up` and Compose run."""
THEIRS = OURS.replace("maxNumOfEndpoints: 3", "maxNumOfEndpoints: 1")
"""For a gateway."""
PATIENCE = "10s"
"""For which a gateway, which fails closed, waits for a picker that stands still: longer than a busy machine has one
wait, and short enough for a test of one that hangs."""


def plan(envoy: str, directory: Path) -> StackPlan:
    ours = envoy == "ours"
    flags: dict[str, str | int | float] = {"decisions-kept": 20_000}
    envoy_file = STANDALONE
    if not ours:
        authority = Authority(directory, "authority")
        put(authority.issue(), directory / PAIR)
        put(authority.issue(), directory / OTHER)
        flags |= {"cert-path": str(directory), "client-ca-file": str(authority.ca)}
        envoy_file = unhurried(verifying(authority, directory), directory, patience=PATIENCE)
    return StackPlan(
        simulators=simulators(3, speed=5, kv_blocks=150, block_tokens=64),
        watchers=2,
        configuration=OURS if ours else THEIRS,
        envoy=envoy_file,
        secure_serving=not ours,
        flags={"picker": flags},
    )


def put(pair: tuple[Path, Path], name: Path) -> None:
    """Name a certificate and its key."""
    for file in pair:
        file.replace(name.with_suffix(file.suffix))


def renew(directory: Path) -> None:
    """Give the gateway's pickers the other certificate; a second time, the former one again."""
    for suffix in (".crt", ".key"):
        used, other = ((directory / name).with_suffix(suffix) for name in (PAIR, OTHER))
        former = used.read_bytes()
        other.replace(used)
        other.write_bytes(former)


def verifying(authority: Authority, directory: Path) -> Path:
    """The gateway's configuration with certificates of both sides (mTLS)."""
    document = load(GATEWAY)
    (pickers,) = (cluster for cluster in document["static_resources"]["clusters"] if cluster["name"] == "pickers")
    certificate, key = authority.issue()
    pickers["transport_socket"]["typed_config"]["common_tls_context"] |= {
        "tls_certificates": [
            {"certificate_chain": {"filename": str(certificate)}, "private_key": {"filename": str(key)}}
        ],
        "validation_context": {"trusted_ca": {"filename": str(authority.ca)}},
    }
    path = directory / "verifying.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ours(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    directory = tmp_path_factory.mktemp("ours")
    async with LocalStack(plan("ours", directory), directory) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    """The pickers and the gateway show each other certificates, and check them."""
    directory = tmp_path_factory.mktemp("gateway")
    async with LocalStack(plan("gateway", directory), directory) as started:
        yield started


async def no_request_fails(stack: LocalStack, signal: Signal, names: Sequence[str]) -> None:
    """Under load processes end, one after the other, the others do without it, and it starts again."""
    async with Load(stack.url) as load:
        for name in names:
            await load.goes_on()
            process = await leading(stack) if name == LEADER else stack[name]
            since = time.monotonic()
            await (process.kill() if signal == "SIGKILL" else process.stop())
            try:
                await missed(stack, process)
                if signal == "SIGKILL" and name == LEADER:
                    measured(WATCHER_KILLED, time.monotonic() - since)
                elif signal == "SIGKILL" and process in stack.pickers:
                    measured(PICKER_KILLED, time.monotonic() - since)
                await load.goes_on()
            finally:
                await process.start()
            await load.goes_on()
            assert not load.failures, (name, load.failures[:5])
    assert not load.failures, load.failures[:5]
    await settled(stack)


async def missed(stack: LocalStack, process: Process) -> None:
    """Wait until the others have done what the end of a process asks of them."""
    if process in stack.watchers:
        await leading(stack, but=process)
    elif process in stack.collectors:
        (other,) = (collector for collector in stack.collectors if collector is not process)

        async def taken_over() -> bool:
            state = await other.state()
            assert len(state["endpoints"]["assigned"]) == len(stack.simulators), state
            return True

        await eventually(taken_over, "the other collector scrapes all endpoints")
    elif process in stack.pickers:
        (picker,) = (picker for picker in stack.pickers if picker is not process)

        async def alone() -> bool:
            return not (await picker.state())["peers"]

        await eventually(alone, "the load of the picker that has gone has expired")


async def settled(stack: LocalStack) -> None:
    """Wait until the pickers' views agree, with fresh metrics of every endpoint, and nothing is in flight."""

    async def agreed() -> bool:
        states = [await picker.state() for picker in stack.pickers]
        differences = [text for state in states for text in _unsettled(state, len(stack.pickers) - 1)]
        assert not differences, differences
        views = [_view(state) for state in states]
        assert all(view == views[0] for view in views), views
        return True

    await eventually(agreed, "settled", step=0.1)


def _unsettled(state: dict[str, Any], peers: int) -> list[str]:
    found = []
    for row in state["endpoints"]:
        attribute = row["attributes"].get(ATTRIBUTE)
        if attribute is None or attribute["age"] > 1.0:
            found.append(f"{state['id']}: {row['id']} has {attribute}")
    if busy := in_flight(state):
        found.append(f"{state['id']}: in flight {busy}")
    if len(state["peers"]) != peers:
        found.append(f"{state['id']}: peers {state['peers']}")
    return found


def _view(state: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What all pickers must see alike: endpoints with their values, without ages."""
    return [
        (
            endpoint["id"],
            endpoint["authority"],
            sorted((name, str(value["value"])) for name, value in endpoint["attributes"].items()),
        )
        for endpoint in state["endpoints"]
    ]


async def leading(stack: LocalStack, *, but: Process | None = None) -> ServiceProcess:
    """The watcher that leads, once one does that isn't this one."""

    async def found() -> ServiceProcess | None:
        running = [watcher for watcher in stack.watchers if watcher.running and watcher is not but]
        leaders = [process for process in running if (await process.state())["leadership"]["leads"]]
        return leaders[0] if len(leaders) == 1 else None

    leader = await eventually(found, "a watcher leads")
    assert leader is not None
    return leader
