"""Calls that ask about the server itself: a port has room for few of them, so they leave the rest to requests."""

from collections.abc import Callable
from functools import partial

from services.picker.transport.calls import Call, Metadata, Method, Methods, StatusCode, Stream

MOST = 1_000
"""Open calls of one service."""


class FewCalls:
    """The open calls of one service. Beyond `MOST`, the oldest one ends: a peer could begin calls and never ask, and
    those of others last milliseconds, except for watches, which begin again."""

    def __init__(self) -> None:
        self._open: dict[Stream, None] = {}

    def of(self, methods: Methods) -> Methods:
        """These methods, whose calls count."""
        return {path: partial(self._begin, method) for path, method in methods.items()}

    def _begin(self, method: Method, stream: Stream, metadata: Metadata) -> Call:
        if len(self._open) >= MOST:
            oldest = next(iter(self._open))
            oldest.finish(StatusCode.RESOURCE_EXHAUSTED, f"{MOST} younger calls are open")
        self._open[stream] = None
        return _Counted(method(stream, metadata), partial(self._open.pop, stream, None))

    def __repr__(self) -> str:
        return f"<FewCalls {len(self._open)} of {MOST}>"


class _Counted:
    held = 0

    def __init__(self, call: Call, ended: Callable[[], None]) -> None:
        self.receive, self.half_close, self.drained = call.receive, call.half_close, call.drained
        self._call, self._ended = call, ended

    def end(self) -> None:
        self._ended()
        self._call.end()

    def __repr__(self) -> str:
        return f"<{self._call!r}, counted>"
