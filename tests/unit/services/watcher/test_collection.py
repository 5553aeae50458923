"""Pauses of the garbage collector."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from services.watcher.collection import await_without_collection, without_collection


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_afterwards_as_it_was(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    assert without_collection(gc.isenabled) is False
    assert gc.isenabled() is enabled
    with pytest.raises(ZeroDivisionError):
        without_collection(lambda: 1 // 0)
    assert gc.isenabled() is enabled


@pytest.mark.parametrize("cancelled", [True, False])
async def test_pauses_that_overlap_end_with_the_last_one(cancelled: bool) -> None:
    gc.enable()
    ends = [asyncio.Event(), asyncio.Event()]
    pauses = [asyncio.create_task(await_without_collection(end.wait())) for end in ends]
    await asyncio.sleep(0)
    for end, pause in zip(ends, pauses, strict=True):
        assert not gc.isenabled(), "one of them hasn't ended"
        if cancelled:
            pause.cancel()
        end.set()
        await asyncio.wait([pause])
    assert gc.isenabled()
