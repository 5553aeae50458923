"""The bytes of messages: what of them fits into a frame, and what a compressed one says."""

import zlib
from collections import deque


def taken(pending: deque[bytes | memoryview], size: int) -> list[bytes | memoryview]:
    """So many bytes from the front."""
    taken: list[bytes | memoryview] = []
    while size:
        piece = pending.popleft()
        if len(piece) > size:
            pending.appendleft(memoryview(piece)[size:])
            piece = memoryview(piece)[:size]
        size -= len(piece)
        taken.append(piece)
    return taken


def decompressed(data: bytes, most: int) -> bytes | None:
    """The content of a gzip member; None for none, or one with more than `most` bytes."""
    reader = zlib.decompressobj(wbits=31)
    try:
        content = reader.decompress(data, most + 1)
    except zlib.error:
        return None
    return content if reader.eof and len(content) <= most else None
