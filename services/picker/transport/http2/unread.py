"""What peers leave unread makes room for others: the answers that wait for a window, and what their calls hold to make
further ones. A peer that opens its windows by a byte now and then would keep both for ever.
"""

from collections.abc import Iterable
from heapq import nlargest
from operator import attrgetter

import structlog

from services.picker.body_buffer import MemoryBudget
from services.picker.transport.http2.errors import ErrorCode
from services.picker.transport.http2.stream import Http2Stream

log = structlog.get_logger(__name__)

PATIENCE = 1.0
"""Seconds after which a stream may be ended for what it holds."""
SPARE = 8
"""The share of the memory that is kept free of it."""
_LOOKED_AT = 1_000
"""Streams of which the costliest are found, those with the most that waits: a call stops to make answers, and holds
what it needs for them, only when much waits. However many others there are, these are among them."""
_ENDED_AT_ONCE = 100
"""A few milliseconds."""


def make_room(streams: Iterable[Http2Stream], memory: MemoryBudget, now: float) -> None:
    """End streams with unread bytes if too little memory is left, the costliest first: their bytes times the seconds
    for which some have been unread."""
    most = memory.limit - memory.limit // SPARE
    if memory.used <= most:
        return
    before = now - PATIENCE
    waiting = [stream for stream in streams if stream.unread_since < before]
    unread = nlargest(_LOOKED_AT, waiting, key=attrgetter("pending"))
    unread.sort(key=lambda stream: stream.held * (now - stream.unread_since), reverse=True)
    ended = 0
    for stream in unread[:_ENDED_AT_ONCE]:
        if memory.used <= most:
            break
        stream.reset(ErrorCode.ENHANCE_YOUR_CALM)
        ended += 1
    if ended:
        log.warning("grpc.streams_unread", streams=ended, reason="the memory of all bodies is used up")
