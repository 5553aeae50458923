"""Pauses of the garbage collector."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from services.watcher.collection import paused_collection


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_afterwards_as_it_was(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    with pytest.raises(ValueError, match="unreadable"), paused_collection():
        raise ValueError("unreadable")
    assert gc.isenabled() is enabled


def test_pauses_of_two_threads_end_with_the_last_one() -> None:
    gc.enable()
    with ExitStack() as second:
        with paused_collection():
            second.enter_context(paused_collection())
        assert not gc.isenabled(), "the second one hasn't ended"
    assert gc.isenabled()
