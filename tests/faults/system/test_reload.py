"""Configurations that change under load, good and bad: no request fails, and nothing that was learned is lost."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from pointsman.local.envoy import STANDALONE
from pointsman.local.services import ServiceProcess
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
RELOADS = 20
"""Every fourth is a bad one."""
RATE = 200
"""Requests a second."""
BETWEEN = 40
"""Requests that are sent by each configuration, at least."""
TOLD = 20.0
"""Seconds within which everybody knows of the last configuration, on a machine that is busy with other tests."""
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

    async def goes_on(self) -> None:
        """Wait until `BETWEEN` more requests have been sent."""
        until = self.sent + BETWEEN
        while self.sent < until:
            assert not self._task.done(), "the load has ended"
            await asyncio.sleep(1 / RATE)

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
    return [await counted(picker, 'pointsman_picker_config_loads_total{result="taken"}') for picker in stack.pickers]


async def counted(process: ServiceProcess, series: str) -> float:
    """The value of a series; 0 while there is none."""
    lines = (await process.get("/metrics")).text.splitlines()
    return sum(float(line.removeprefix(series)) for line in lines if line.startswith(f"{series} "))


async def becomes(what: Callable[[], Awaitable[Any]], expected: Any) -> None:
    """Wait until it is what is expected."""
    deadline = time.monotonic() + TOLD
    while (found := await what()) != expected:
        assert time.monotonic() < deadline, f"{found} instead of {expected}"
        await asyncio.sleep(0.02)


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
    watcher = stack.watchers[0]

    async def rejected() -> float:
        return await counted(watcher, "pointsman_watcher_rejections_total")

    async with Steady(stack.url) as load:
        await load.goes_on()

        async def decided() -> bool:
            return all(await blocks(stack))

        await becomes(decided, True)
        known = await blocks(stack)
        good, bad = await taken(stack), await rejected()
        for number in range(RELOADS):
            if number % 4 == 3:
                stack.write_configuration(BAD[number // 4])
                bad += 1
                await becomes(rejected, bad)
                assert await taken(stack) == good
            else:
                stack.write_configuration(variant(number))
                good = [count + 1 for count in good]
                await becomes(lambda: taken(stack), good)
            await load.goes_on()

        async def learned() -> bool:
            return all(new > old for old, new in zip(known, await blocks(stack), strict=True))

        await becomes(learned, True)
    assert not load.failures, load.failures[:5]
    await settled(stack)


async def test_a_bad_configuration_changes_nothing_and_is_told_until_it_is_mended(stack: LocalStack) -> None:
    good = [count + 1 for count in await taken(stack)]
    stack.write_configuration(variant(1))
    await becomes(lambda: taken(stack), good)
    before = [(await picker.state())["config"] for picker in stack.pickers]
    stack.write_configuration(BAD[0])
    notes = await told(stack, amiss=True)
    assert "'no-such-scorer' is no plugin's name" in " ".join(notes.values()), notes
    assert [(await picker.state())["config"] for picker in stack.pickers] == before
    stack.write_configuration(GOOD)
    await told(stack, amiss=False)
