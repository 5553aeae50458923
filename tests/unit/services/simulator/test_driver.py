"""The driver with a clock that stands still until a test moves it."""

import asyncio

import pytest

from services.simulator.counters import FinishReason
from services.simulator.driver import Driver
from services.simulator.engine import Engine, Overloaded
from tests.unit.services.simulator.scenario import MS, settings, text, work


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def started(**given: object) -> tuple[Driver, Clock]:
    clock = Clock()
    return Driver(Engine(settings(**given), 0), clock), clock


async def test_tokens_that_came_together_are_reported_together() -> None:
    driver, clock = started()
    queue = driver.submit([work("one", text(10), 9, stream=True)])
    clock.now = 45 * MS
    driver.state()
    assert [each.tokens for each in await queue.get()] == [4]
    driver.close()


async def test_ends_waits_for_every_choice() -> None:
    driver, clock = started()
    queue = driver.submit([work("short", text(10), 1), work("long", text(10, "b   "), 9)])
    waiting = asyncio.ensure_future(queue.ends())
    clock.now = 50 * MS
    driver.state()
    await asyncio.sleep(0)
    assert not waiting.done()
    clock.now = 500 * MS
    driver.state()
    assert set(await waiting) == {"short", "long"}
    driver.close()


async def test_all_of_a_call_is_taken_or_nothing() -> None:
    driver, _ = started(max_requests=2)
    with pytest.raises(Overloaded):
        driver.submit([work(name, text(10), 1) for name in "abc"])
    assert (driver.state().running, driver.state().waiting) == (0, 0)
    driver.close()


async def test_withdrawing_frees_what_is_held() -> None:
    driver, clock = started(slots=1)
    queue = driver.submit([work("one", text(10), 100), work("two", text(10), 100)])
    clock.now = 30 * MS
    driver.withdraw(queue)
    state = driver.state()
    assert (state.running, state.waiting, state.kv_used) == (0, 0, 0)
    driver.withdraw(queue)
    assert driver.engine.counters.finished[FinishReason.ABORT] == 2
    driver.close()


async def test_the_timer_brings_the_answer() -> None:
    """In real time, a thousand times as fast."""
    driver = Driver(Engine(settings(speed=1000), 0))
    queue = driver.submit([work("one", text(10), 3)])
    assert set(await queue.ends()) == {"one"}
    assert repr(driver).startswith("<Driver 0 requests"), "nothing is kept of it"
    driver.close()
