"""What clients see behind our Envoy when a process is stopped, killed, or there and silent, or when the configuration
changes: nothing."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable

import httpx
import pytest

from pointsman.local.services import ServiceProcess
from pointsman.local.stack import LocalStack
from services.picker.state.lru_prefix_index import SPARE
from tests.faults.system.conftest import LEADER, OURS, no_request_fails, settled
from tests.faults.system.load import ENOUGH, Load, back_after, hit_rate
from tests.soak.promises import NATS_WIPED, RESTARTED, measured, soaking
from tests.waiting import TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

BAD = (
    OURS.replace("pluginRef: token-load-scorer", "pluginRef: no-such-scorer"),
    OURS.replace("schedulingProfiles:", "schedulingProfile:"),
    OURS.replace("maxRequestGap: 32", "maxRequestGap: wide"),
    OURS + "\nplugins: [}",
    "- not\n- a mapping\n",
)
RELOADS = 20 if soaking() else 8
"""Every fourth is a bad one."""


@pytest.mark.soak
async def test_no_request_fails_when_one_of_each_is_killed(ours: LocalStack) -> None:
    await no_request_fails(ours, "SIGKILL", ("picker-1", "collector-1", LEADER, "nats"))


@pytest.mark.soak
async def test_no_request_fails_while_everything_restarts(ours: LocalStack) -> None:
    tiers = (*ours.pickers, *ours.collectors, *ours.watchers, ours.nats, ours.simulators[0])
    restarts = []
    async with Load(ours.url) as load:
        await load.goes_on(15 * ENOUGH if soaking() else ENOUGH)
        usual = hit_rate(load.hits[-5 * ENOUGH :])
        for process in tiers:
            since = time.monotonic()
            await process.stop()
            await load.goes_on()
            await process.start()
            restarts += [] if process in ours.simulators else [since, time.monotonic()]
            await load.goes_on(3 * ENOUGH)
    assert not load.failures, load.failures[:5]
    for since in restarts:
        measured(RESTARTED, back_after(load.hits, since, usual))
    await settled(ours)


async def test_a_hanging_picker_costs_no_request(ours: LocalStack) -> None:
    picker, other = ours["picker-2"], ours.pickers[0]

    async def alone() -> bool:
        return not (await other.state())["peers"]

    async with Load(ours.url) as load:
        await load.goes_on()
        picker.pause()
        try:
            await eventually(alone, "its load has expired")
            await load.goes_on(3 * load.workers)
        finally:
            picker.resume()
        await load.goes_on()
    assert not load.failures, load.failures[:5]
    await settled(ours)


async def test_with_all_pickers_gone_requests_are_routed_all_the_same(ours: LocalStack) -> None:
    for picker in ours.pickers:
        await picker.kill()
    try:
        async with Load(ours.url) as load:
            await eventually(lambda: set(load.served) == {"model-1", "model-2", "model-3"}, lambda: load.served)
    finally:
        await asyncio.gather(*(picker.start() for picker in ours.pickers))
    assert not load.failures, load.failures[:5]
    await settled(ours)


async def test_a_dead_model_server_costs_only_the_answers_that_it_had_begun(ours: LocalStack) -> None:
    """What it hadn't answered yet is retried at a fallback; a response that has begun can't be taken back."""
    async with Load(ours.url) as load:
        await load.goes_on()
        await ours["model-2"].kill()
        killed = time.monotonic()
        try:
            await load.goes_on()
        finally:
            await ours["model-2"].start()
        await load.goes_on()
    assert all(failure.started <= killed and "stream=True" in failure.what for failure in load.failures), load.failures[
        :5
    ]
    await settled(ours)


async def test_a_picker_that_starts_without_nats_is_not_ready_and_says_why(ours: LocalStack) -> None:
    await ours.nats.kill()
    picker = ours.pickers[0]
    await picker.kill()
    await picker.start(wait=False)
    statuses: set[int] = set()

    async def said() -> bool:
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as client:
                answer = await client.get(f"{picker.url}/readyz")
        except httpx.HTTPError:
            return False
        statuses.add(answer.status_code)
        return "NATS" in answer.json()["reasons"].get("view", "")

    try:
        await eventually(said, "the reason")
        assert statuses == {503}
        async with Load(ours.url) as load:  # the other picker goes on from what it knows
            await load.goes_on()
    finally:
        await ours.nats.start()
    assert not load.failures, load.failures[:5]
    await picker.wait_ready()
    await settled(ours)


@pytest.mark.soak
async def test_a_wiped_nats_is_filled_again_by_the_owners(ours: LocalStack) -> None:
    async with Load(ours.url) as load:
        await ours.nats.kill()
        ours.nats.wipe()
        await ours.nats.start()
        back = time.monotonic()

        async def right() -> bool:
            """Heard, and complete, since NATS is back."""
            views = [(await picker.state())["view"] for picker in ours.pickers]
            return all(
                view["synced"] and view["age"] is not None and view["age"] < time.monotonic() - back for view in views
            )

        await eventually(right, "the views")
        measured(NATS_WIPED, time.monotonic() - back)
        await load.goes_on()
    assert not load.failures, load.failures[:5]
    await settled(ours)


# Configurations that change under load


async def blocks(ours: LocalStack) -> list[float]:
    """How many prefix blocks each picker knows, over all endpoints."""
    states = [await picker.state() for picker in ours.pickers]
    return [sum(endpoint["prefix_blocks"] for endpoint in state["endpoints"]) for state in states]


async def taken(ours: LocalStack) -> list[float]:
    """How many configurations each picker has taken from the bus."""
    return [await counted(picker, 'pointsman_picker_config_loads_total{result="taken"}') for picker in ours.pickers]


async def counted(process: ServiceProcess, series: str) -> float:
    """The value of a series; 0 while there is none."""
    lines = (await process.get("/metrics")).text.splitlines()
    return sum(float(line.removeprefix(series)) for line in lines if line.startswith(f"{series} "))


async def grows(what: Callable[[], Awaitable[list[float]]], before: list[float]) -> None:
    """Wait until every number is above what it was."""

    async def is_so() -> bool:
        now = await what()
        assert all(new > old for old, new in zip(before, now, strict=True)), (before, now)
        return True

    await eventually(is_so)


async def reconfigure(ours: LocalStack, text: str) -> None:
    """Another configuration, which the pickers take."""
    before = await taken(ours)
    ours.write_configuration(text)
    await grows(lambda: taken(ours), before)


_numbers = itertools.count(1)


def variant() -> str:
    """A good configuration that differs from all before, also from those of an attempt that failed."""
    return OURS.replace("maxRequestGap: 32", f"maxRequestGap: {32 + next(_numbers)}")


async def told(ours: LocalStack, *, amiss: bool) -> dict[str, str]:
    """The notes of the watcher's readiness, once there are any, or none."""
    notes: dict[str, str] = {}

    async def is_so() -> bool:
        nonlocal notes
        notes = (await ours.watchers[0].get("/readyz")).json()["notes"]
        return bool(notes) is amiss

    await eventually(is_so, lambda: f"the notes are {notes}")
    return notes


@pytest.mark.soak
async def test_reloads_under_load_lose_no_request_and_no_prefix(ours: LocalStack) -> None:
    async def rejected() -> list[float]:
        return [await counted(watcher, "pointsman_watcher_rejections_total") for watcher in ours.watchers]

    async with Load(ours.url) as load:
        await load.goes_on()
        await grows(lambda: blocks(ours), [0, 0])
        for number in range(RELOADS):
            if number % 4 == 3:
                before = await rejected()
                ours.write_configuration(BAD[number // 4])
                await grows(rejected, before)
            else:
                known = await blocks(ours)
                await reconfigure(ours, variant())
                now = await blocks(ours)
                # a full endpoint drops a part of its blocks at once
                assert all(after >= before * (1 - 2 / SPARE) for before, after in zip(known, now, strict=True)), known
            await load.goes_on()
    assert not load.failures, load.failures[:5]
    await settled(ours)


async def test_a_bad_configuration_changes_nothing_and_is_told_until_it_is_mended(ours: LocalStack) -> None:
    await reconfigure(ours, variant())
    await told(ours, amiss=False)  # a standby may still tell of the last test's
    before = [(await picker.state())["config"] for picker in ours.pickers]
    ours.write_configuration(BAD[0])
    notes = await told(ours, amiss=True)
    assert "'no-such-scorer' is no plugin's name" in " ".join(notes.values()), notes
    assert [(await picker.state())["config"] for picker in ours.pickers] == before
    ours.write_configuration(OURS)
    await told(ours, amiss=False)
