"""Keeps Python's garbage collector away from many new objects that live long.

While there are more and more objects, the collector searches all of them again and again: half a second and more with
a million. What it looks for are cycles, and such objects have none.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 100
"""Searches of the youngest objects, some 700 each, in a block that makes many."""
_NEVER = 2**30
_blocks = 0
"""Blocks under way."""
_thresholds = gc.get_threshold()
"""Those from before the first of them."""


@contextmanager
def long_lived() -> Iterator[None]:
    """What is made in the block lives long. Meanwhile only the youngest objects of this process are searched, and if
    there are `MANY` new ones, afterwards none that are there by then: what is in a cycle then is never freed. For
    blocks of one thread, which may await and overlap."""
    global _blocks, _thresholds
    if not _blocks:
        _thresholds = gc.get_threshold()
        gc.set_threshold(_thresholds[0], _NEVER, _NEVER)
    _blocks += 1
    try:
        yield
    finally:
        _blocks -= 1
        if not _blocks:
            if gc.get_count()[1] >= MANY:
                gc.freeze()
            gc.set_threshold(*_thresholds)
