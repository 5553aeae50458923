"""Where a raw JSON value lies in the text that it was decoded from.

msgspec hands out a raw value as a slice of the buffer that it read, so the slice's address tells its place: nested,
escaped and duplicate keys are read as the decoder reads them, and what is around the value needn't be understood.
"""

import numpy as np
from msgspec import Raw


def start_of(value: Raw, text: bytes) -> int:
    """The position in `text`, which it was decoded from, where a raw value that isn't empty begins."""
    return _address(memoryview(value)) - _address(memoryview(text))


def _address(view: memoryview) -> int:
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address
