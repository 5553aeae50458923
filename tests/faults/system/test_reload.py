"""Configurations that change under load, good and bad: no request fails, and nothing that was learned is lost."""

import asyncio
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from pointsman.local.envoy import STANDALONE
from pointsman.local.stack import LocalStack, StackPlan, simulators
from tests.faults.system.conftest import settled
from tests.protocol.system.conftest import CONFIGURATION

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

GOOD = CONFIGURATION.format(endpoints=3)
BAD = (
    GOOD.replace("queue-scorer, weight", "no-such-scorer, weight"),
    GOOD.replace("schedulingProfiles:", "schedulingProfile:"),
    GOOD.replace("weight: 3", "weight: heavy"),
    GOOD + "\nplugins: [}",
    "- not\n- a mapping\n",
)
RELOADS, EVERY = 20, 0.25
RATE = 200
"""Requests a second."""
TOLD = 5.0
"""Seconds within which everybody knows of the last configuration."""
PREFIX = "Standing orders of the signal box at the points. " * 40


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    plan = StackPlan(simulators=simulators(3, speed=50), configuration=GOOD, envoy=STANDALONE)
    async with LocalStack(plan, tmp_path_factory.mktemp("reload")) as started:
        yield started


class Steady:
    """Completions at a steady rate, all with one long prefix, until the end of the context."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.sent = 0
        self.failures: list[str] = []
        self._asked: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Steady":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=30)
        )
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        await asyncio.gather(*self._asked)
        await self._session.close()

    async def _run(self) -> None:
        began = time.monotonic()
        while True:
            while self.sent < (time.monotonic() - began) * RATE:
                self.sent += 1
                asked = asyncio.create_task(self._ask(self.sent))
                self._asked.add(asked)
                asked.add_done_callback(self._asked.discard)
            await asyncio.sleep(1 / RATE)

    async def _ask(self, number: int) -> None:
        body = {"model": "simulated", "prompt": f"{PREFIX}{number}", "max_tokens": 1}
        try:
            async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
                text = await response.text()
                if response.status != 200:
                    self.failures.append(f"{response.status}: {text[:200]}")
        except (aiohttp.ClientError, TimeoutError) as error:
            self.failures.append(f"{type(error).__name__}: {error}")


async def blocks(stack: LocalStack) -> list[int]:
    """How many prefix blocks each picker knows, over all endpoints."""
    states = [await picker.state() for picker in stack.pickers]
    return [sum(one["prefix_blocks"] for one in state["endpoints"]) for state in states]


async def taken(stack: LocalStack) -> list[float]:
    """How many configurations each picker has taken from the bus."""
    found = []
    for picker in stack.pickers:
        text = (await picker.get("/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith("pointsman_picker_config_loads_total")]
        found.append(sum(float(line.split()[-1]) for line in lines if 'result="taken"' in line))
    return found


def variant(number: int) -> str:
    """A good configuration that differs from the one before."""
    return GOOD.replace("weight: 3", f"weight: {3 + number % 7 / 100}")


async def told(stack: LocalStack, *, amiss: bool) -> dict[str, str]:
    """The notes of the watcher's readiness, once there are any, or none."""
    deadline = time.monotonic() + TOLD
    while time.monotonic() < deadline:
        notes: dict[str, str] = (await stack.watchers[0].get("/readyz")).json()["notes"]
        if bool(notes) is amiss:
            return notes
        await asyncio.sleep(0.05)
    pytest.fail(f"the notes are {notes}")


async def test_reloads_under_load_lose_no_request_and_no_prefix(stack: LocalStack) -> None:
    async with Steady(stack.url) as load:
        await asyncio.sleep(1.0)
        known, before = await blocks(stack), await taken(stack)
        for number in range(RELOADS):
            bad = number % 4 == 3
            stack.write_configuration(BAD[number // 4] if bad else variant(number))
            await asyncio.sleep(EVERY)
        after, afterwards = await blocks(stack), await taken(stack)
        await asyncio.sleep(0.5)
    assert not load.failures, load.failures[:5]
    assert load.sent > RATE * RELOADS * EVERY
    assert all(new > old > 0 for old, new in zip(known, after, strict=True)), (known, after)
    # Two changes within one reading of the file are one reload.
    assert all(new - old >= RELOADS // 2 for old, new in zip(before, afterwards, strict=True)), (before, afterwards)
    await settled(stack)


async def test_a_bad_configuration_changes_nothing_and_is_told_until_it_is_mended(stack: LocalStack) -> None:
    stack.write_configuration(variant(1))
    await asyncio.sleep(0.5)
    before = [(await picker.state())["config"] for picker in stack.pickers]
    stack.write_configuration(BAD[0])
    notes = await told(stack, amiss=True)
    assert "'no-such-scorer' is no plugin's name" in " ".join(notes.values()), notes
    assert [(await picker.state())["config"] for picker in stack.pickers] == before
    stack.write_configuration(GOOD)
    await told(stack, amiss=False)
