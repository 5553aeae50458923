"""What a service does with its background tasks."""

import asyncio
import inspect

import pytest
from prometheus_client import generate_latest

from shared.service.process import Service
from shared.service.settings import CommonSettings


@pytest.mark.parametrize("name", ["process_cpu_seconds_total", "python_info", "python_gc_collections_total"])
def test_the_metrics_tell_of_the_process_too(name: str) -> None:
    assert f"\n{name}" in generate_latest(Service(CommonSettings()).registry).decode()


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
