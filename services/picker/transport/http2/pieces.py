"""The bytes of messages: what of them fits into a frame, and what a compressed one says."""

import zlib
from collections import deque
from typing import cast

_SHORT = 4 * 2**10
"""Bytes of a piece that is joined with the one before it: each piece takes 200 bytes besides."""


def add(pending: deque[bytes | memoryview], head: bytes, message: bytes) -> None:
    """A message follows, with its head. Many short ones take little more memory than their bytes."""
    if len(message) >= _SHORT:
        pending += (head, memoryview(message))
    elif pending and type(last := pending[-1]) is bytes and len(last) < _SHORT:
        pending[-1] = b"".join((last, head, message))
    else:
        pending.append(head + message)


def taken(pending: deque[bytes | memoryview], size: int) -> list[bytes | memoryview]:
    """So many bytes from the front. What is left of a piece holds at most twice its bytes."""
    taken: list[bytes | memoryview] = []
    while size:
        piece = pending.popleft()
        if len(piece) > size:
            view = memoryview(piece)
            rest = view[size:]
            pending.appendleft(bytes(rest) if 2 * len(rest) < _held(view) else rest)
            piece = view[:size]
        size -= len(piece)
        taken.append(piece)
    return taken


def _held(view: memoryview) -> int:
    """Bytes of what a view is of."""
    return len(cast(bytes, view.obj))


def decompressed(data: bytes, most: int) -> bytes | None:
    """The content of a gzip member; None for none, for more than one, or one with more than `most` bytes."""
    reader = zlib.decompressobj(wbits=31)
    try:
        content = reader.decompress(data, most + 1)
    except zlib.error:
        return None
    return content if reader.eof and not reader.unused_data and len(content) <= most else None
