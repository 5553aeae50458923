"""Removes messages of the bucket under keys that no owner writes and no delete can name safely.

Anybody may store a message under a key that is no text, that a client refuses to publish to, or that, as a subject, has
a wildcard and stands for other keys too. A message's sequence names it exactly. No reader takes such a key, so `synced`
doesn't wait for its removal.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import structlog

from shared.bus import jetstream
from shared.bus.connection import Bus
from shared.bus.errors import BusError, JetStreamError

MAX_SUBJECT = 3000
"""Bytes of a subject to which a delete is published. Facts have shorter ones. For a longer one, the delete with its
reply subject would exceed the server's line, and the server would disconnect."""
_NAMEABLE = re.compile(r"[A-Za-z0-9_/=-]+(?:\.[A-Za-z0-9_/=-]+)*")
"""What `escape` leaves or makes, in tokens."""
_NO_TEXT = "\ufffd"
"""In a subject: what isn't UTF-8."""


def is_nameable(subject: str, key: str) -> bool:
    """Whether a delete can be published under this key, and concerns no other."""
    return len(subject) <= MAX_SUBJECT and _NAMEABLE.fullmatch(key) is not None


class Stray(NamedTuple):
    """A message under such a key."""

    sequence: int
    subject: str


class StrayMessages:
    """Those of a bucket that were found last. `window` removals are in flight at once."""

    def __init__(self, bus: Bus, bucket: str, window: int) -> None:
        self._bus = bus
        self._bucket = bucket
        self._window = window
        self._found: deque[Stray] = deque()
        self._more = False
        self._failure = ""
        self._log = structlog.get_logger()

    def found(self, strays: Iterable[Stray], *, more: bool) -> None:
        """What a reading has found; there may be `more` than it could take."""
        self._found = deque(strays)
        self._more = more
        if self._found:
            self._log.warning("facts.stray_messages.found", bucket=self._bucket, messages=len(self._found))

    @property
    def more(self) -> bool:
        """All that were found are removed, and there are more."""
        return self._more and not self._found

    async def remove(self, wake: asyncio.Event, until: float) -> int:
        """Remove them until `wake` is set or, by the monotonic clock, `until`; returns how many are removed. What fails
        is logged, and tried again by the next call."""
        removed = 0
        while self._found and not wake.is_set() and time.monotonic() < until:
            batch = [self._found.popleft() for _ in range(min(self._window, len(self._found)))]
            results = await asyncio.gather(*map(self._remove, batch), return_exceptions=True)
            failure: BusError | None = None
            for stray, result in zip(batch, results, strict=True):
                if isinstance(result, BusError):
                    self._found.append(stray)
                    failure = result
                elif isinstance(result, BaseException):
                    raise result
                else:
                    removed += result
            self._note(failure)
            if failure is not None:
                break
        return removed

    async def _remove(self, stray: Stray) -> bool:
        try:
            return await jetstream.remove(self._bus, self._bucket, stray.sequence)
        except JetStreamError as error:
            if error.error_code != jetstream.DELETE_FAILED:
                raise
            tokens = stray.subject.split(".")
            if "*" in tokens or ">" in tokens or _NO_TEXT in stray.subject:
                self._more = False  # they would be found again and again
                self._note(error)
                return False
        await jetstream.purge(self._bus, self._bucket, stray.subject, before=stray.sequence + 1)
        return True

    def _note(self, error: BusError | None) -> None:
        reason = "" if error is None else str(error)
        if reason and reason != self._failure:
            self._log.warning("facts.stray_messages.failed", bucket=self._bucket, reason=reason)
        self._failure = reason or self._failure

    def __repr__(self) -> str:
        return f"<StrayMessages {len(self._found)}{' and more' if self._more else ''}>"
