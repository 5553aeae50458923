"""Pauses Python's garbage collector while large documents become objects.

Such objects have no cycles. Searching for cycles after every 700 containers takes more time than parsing, and each
search of all objects holds the event loop.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_pauses = 0
"""Blocks under way, in all threads."""
_enabled = True
"""Whether the collector was on when the first of them began."""


@contextmanager
def paused_collection() -> Iterator[None]:
    """No automatic garbage collection in this process until every thread has left such a block."""
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
