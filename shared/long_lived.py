"""Keeps Python's garbage collector away from many new objects that live long.

While there are more and more objects, the collector searches all of them again and again: half a second and more with
a million. What it looks for are cycles, and such objects have none.

This is a call, not a context manager: a generator that is left in the middle of a block would never end it.
"""

import gc
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

MANY = 100
"""Searches of the youngest objects, some 700 each, in a call that makes many."""
_NEVER = 2**30
_calls = 0
"""Calls under way."""
_thresholds = gc.get_threshold()
"""Those from before the first of them."""


async def long_lived(work: Awaitable[T]) -> T:
    """The result of `work`; what it makes lives long. Meanwhile only the youngest objects of this process are searched,
    and if there are `MANY` new ones, afterwards none that are there by then: what is in a cycle then is never freed.
    For one thread, in which calls may overlap."""
    global _calls, _thresholds
    if not _calls:
        _thresholds = gc.get_threshold()
        gc.set_threshold(_thresholds[0], _NEVER, _NEVER)
    _calls += 1
    try:
        return await work
    finally:
        _calls -= 1
        if not _calls:
            if gc.get_count()[1] >= MANY:
                gc.freeze()
            gc.set_threshold(*_thresholds)
