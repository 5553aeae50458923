"""The whole system under load, to have its parts stopped, killed and paused."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pointsman.local.envoy import GATEWAY, STANDALONE
from pointsman.local.process import Process
from pointsman.local.services import Picker, ServiceProcess
from pointsman.local.stack import LocalStack, StackPlan, simulators
from tests.protocol.system.conftest import CONFIGURATION, in_flight

ATTRIBUTE = "WaitingQueueSize/core-metrics-extractor"
LEADER, STANDBY = "the watcher that leads", "the watcher on standby"
PATIENCE = 20.0
"""Seconds for something to happen that takes two or three."""


def plan(envoy: str) -> StackPlan:
    ours = envoy == "ours"
    return StackPlan(
        simulators=simulators(3, speed=3),
        watchers=2,
        configuration=CONFIGURATION.format(endpoints=3 if ours else 1),
        envoy=STANDALONE if ours else GATEWAY,
        secure_serving=not ours,
        flags={"picker": {"decisions-kept": 20_000}},
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ours(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    async with LocalStack(plan("ours"), tmp_path_factory.mktemp("ours")) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    async with LocalStack(plan("gateway"), tmp_path_factory.mktemp("gateway")) as started:
        yield started


async def settled(stack: LocalStack, within: float = 20.0) -> None:
    """Wait until the pickers' views agree, with fresh metrics of every endpoint, and nothing is in flight."""
    deadline = time.monotonic() + within
    differences: list[str] = []
    while time.monotonic() < deadline:
        states = [await picker.state() for picker in stack.pickers]
        differences = [text for state in states for text in _unsettled(state, len(stack.pickers) - 1)]
        views = [_view(state) for state in states]
        differences += [f"views differ: {views}"] if any(view != views[0] for view in views) else []
        if not differences:
            return
        await asyncio.sleep(0.1)
    pytest.fail(f"not settled after {within} s: {differences}")


def _unsettled(state: dict[str, Any], peers: int) -> list[str]:
    found = []
    for one in state["endpoints"]:
        attribute = one["attributes"].get(ATTRIBUTE)
        if attribute is None or attribute["age"] > 1.0:
            found.append(f"{state['id']}: {one['id']} has {attribute}")
    if busy := in_flight(state):
        found.append(f"{state['id']}: in flight {busy}")
    if len(state["peers"]) != peers:
        found.append(f"{state['id']}: peers {state['peers']}")
    return found


def _view(state: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What all pickers must see alike: endpoints with their values, without ages."""
    return [
        (
            one["id"],
            one["authority"],
            sorted((name, str(value["value"])) for name, value in one["attributes"].items()),
        )
        for one in state["endpoints"]
    ]


async def named(stack: LocalStack, name: str) -> Process:
    """A process by its name, or a watcher by whether it leads."""
    if name not in (LEADER, STANDBY):
        return stack[name]
    leader = await leading(stack)
    return leader if name == LEADER else next(one for one in stack.watchers if one is not leader)


async def leading(stack: LocalStack, *, but: Process | None = None) -> ServiceProcess:
    """The watcher that leads, once one does that isn't this one."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        running = [one for one in stack.watchers if one.running and one is not but]
        leaders = [one for one in running if (await one.state())["leadership"]["leads"]]
        if len(leaders) == 1:
            return leaders[0]
        await asyncio.sleep(0.05)
    pytest.fail(f"after {PATIENCE:g} s none of {stack.watchers} leads but {but}")


async def has_decided(picker: Picker, request_id: str) -> bool:
    """Whether the picker has made a decision on this request."""
    try:
        await picker.get(f"/debug/decisions/{request_id}")
    except httpx.HTTPStatusError:
        return False
    return True


async def decided_lately(picker: Picker) -> set[str]:
    """The requests of the last thousand decisions of a picker."""
    return {one["request_id"] for one in (await picker.get("/debug/decisions?limit=1000")).json()["decisions"]}
