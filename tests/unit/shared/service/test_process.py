"""What a service does with its background tasks."""

import asyncio
import inspect

from shared.service import CommonSettings, Service


async def test_work_that_is_cancelled_before_it_begins_is_closed() -> None:
    begun = []

    async def work() -> None:
        begun.append(True)

    given = work()
    task = Service(CommonSettings()).spawn(given, "work")
    task.cancel()
    await asyncio.wait([task])
    assert (task.cancelled(), begun) == (True, [])
    await asyncio.sleep(0)
    assert inspect.getcoroutinestate(given) == inspect.CORO_CLOSED
