import asyncio
import time
from contextlib import suppress

from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from shared.service.watchdog import LOG_EVERY, Culprit, Watchdog
from tests.waiting import eventually


async def test_a_task_that_holds_the_loop_is_named() -> None:
    registry = CollectorRegistry()
    watchdog = Watchdog(registry, log_every=0.0)

    async def hold() -> None:
        time.sleep(0.2)  # noqa: ASYNC251

    with capture_logs() as lines:
        watching = asyncio.create_task(watchdog.run())

        async def named() -> bool:
            """Once is enough on a machine that lets the watching thread run meanwhile."""
            await asyncio.sleep(0.05)
            await asyncio.create_task(hold(), name="guilty")
            await asyncio.sleep(0.05)
            return any(line["task"] == "guilty" for line in lines)

        await eventually(named, "the task's name in the log")
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    line = next(line for line in lines if line["task"] == "guilty")
    assert line["event"] == "event_loop.paused"
    assert line["at"].startswith("tests/unit/shared/service/test_watchdog.py:")
    assert line["at"].endswith(" hold")
    pauses = registry.get_sample_value("pointsman_event_loop_pause_seconds_count")
    assert pauses is not None
    assert pauses >= 1
    assert registry.get_sample_value("pointsman_event_loop_longest_pause_seconds") == watchdog.longest > 0.1


def test_pauses_are_counted_each_and_logged_seldom_but_for_the_longest() -> None:
    registry = CollectorRegistry()
    watchdog = Watchdog(registry, log_every=LOG_EVERY)
    with capture_logs() as lines:
        for seconds in (0.3, 2.0, 0.1):
            watchdog.paused(seconds, 0.01, Culprit("one", "two"))
    first, longest = lines
    assert (first["seconds"], first["cpu_seconds"], first["task"], first["at"]) == (0.3, 0.01, "one", "two")
    assert longest["seconds"] == 2.0
    assert registry.get_sample_value("pointsman_event_loop_pause_seconds_sum") == 2.4
    assert registry.get_sample_value("pointsman_event_loop_longest_pause_seconds") == 2.0
