"""Pauses Python's garbage collector while large documents become objects.

Such objects have no cycles. Searching for cycles after every 700 containers takes more time than parsing, and each
search of all objects holds the event loop.

A pause is a call, not a context manager: a generator that is left in the middle of a block would never end the pause.
"""

import gc
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_pauses = 0
"""Calls under way, in all threads."""
_enabled = True
"""Whether the collector was on when the first of them began."""


def without_collection(make: Callable[[], T]) -> T:
    """What `make` returns. No automatic garbage collection in this process until every thread has left such a call."""
    with _paused():
        return make()


async def await_without_collection(work: Awaitable[T]) -> T:
    """The result of `work`, which may let others run, but waits for nothing; otherwise as above."""
    with _paused():
        return await work


@contextmanager
def _paused() -> Iterator[None]:
    global _enabled, _pauses
    with _lock:
        if not _pauses:
            _enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if not _pauses and _enabled:
                gc.enable()
