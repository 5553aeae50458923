"""Replies to pending requests: all of a connection's arrive on one inbox, distinguished by a token.

nats-py's own requests wait for their timeout after a disconnect; these fail at once.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nats.aio.msg import Msg

from shared.bus.errors import NotConnected

STREAM, SUBJECT, SEQUENCE = "Nats-Stream", "Nats-Subject", "Nats-Sequence"
"""Headers with which the server shows a stored message, behind the message's own. Its other headers are anybody's."""
BEFORE, PENDING = "Nats-Last-Sequence", "Nats-Num-Pending"
"""Headers of a message that is published again, and of one in a batch: the sequence of the message before; of one in a
batch alone: how many are behind it."""


def status(message: Msg) -> str | None:
    """The status of a message without content: `503`, `404`, `204`. None for any other message, including a stored one
    with a forged header of this name."""
    headers = message.headers
    return None if headers is None or message.data or SEQUENCE in headers else headers.get("Status")


def is_no_responders(message: Msg) -> bool:
    """The server reports that no process subscribes to the request's subject."""
    return status(message) == "503"


class Reply:
    """The last answer to one request. Earlier ones are kept by nobody but `last`, which sees each."""

    __slots__ = ("_last", "complete", "token")

    def __init__(self, token: str, last: Callable[[Msg], object]) -> None:
        self._last = last
        self.token = token
        self.complete: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

    def add(self, message: Msg) -> None:
        if not self.complete.done() and (is_no_responders(message) or self._last(message)):
            self.complete.set_result(message)


class Replies:
    """All requests of a bus that are on their way."""

    def __init__(self) -> None:
        self._expected: dict[str, Reply] = {}

    @contextmanager
    def expect(self, last: Callable[[Msg], object]) -> Iterator[Reply]:
        """A new request, until the end of the block; `last` says of an answer whether it is the last one. Whoever has
        seen another request doesn't know this one's token."""
        token = secrets.token_hex(8)
        reply = self._expected[token] = Reply(token, last)
        try:
            yield reply
        finally:
            del self._expected[reply.token]
            if not reply.complete.cancel() and not reply.complete.cancelled():
                reply.complete.exception()  # seen, also when the request ended for another reason

    async def receive(self, message: Msg) -> None:
        """An answer; a reply without a waiting request is dropped."""
        reply = self._expected.get(message.subject.rpartition(".")[2])
        if reply is not None:
            reply.add(message)

    def fail(self, reason: str) -> None:
        """The connection is gone: nothing of what is on its way will be answered."""
        for reply in self._expected.values():
            if not reply.complete.done():
                reply.complete.set_exception(NotConnected(reason))

    def __repr__(self) -> str:
        return f"<Replies expected={len(self._expected)}>"
