"""Long pieces of work in turns with others."""

import asyncio

import pytest

from shared.tasks import in_turns


@pytest.mark.parametrize(("cost", "turns"), [(0, 0), (1, 3), (3, 6), (5, 12), (100, 12)])
async def test_others_run_whenever_a_turn_is_over(cost: int, turns: int) -> None:
    now = others = 0

    async def run_beside() -> None:
        nonlocal others
        while True:
            await asyncio.sleep(0)
            others += 1

    beside = asyncio.create_task(run_beside())
    await asyncio.sleep(0)
    found = []

    def clock() -> float:
        return float(now)

    async for item in in_turns(range(12), turn=4, clock=clock):
        found.append(item)
        now += cost
    assert (found, others) == (list(range(12)), turns)
    beside.cancel()
