"""Pauses Python's garbage collector while large documents become objects.

Such objects have no cycles. Searching for cycles after every 700 containers takes more time than parsing, and each
search of all objects holds the event loop.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collection() -> Iterator[None]:
    """No automatic garbage collection in this process."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
