"""What a gRPC method and a server know of each other. A server that speaks HTTP/2 and grpcio's both serve it.

A message is the bytes of one protobuf message, in either direction.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Protocol, TypeAlias

Metadata: TypeAlias = Sequence[tuple[str, str]]
"""The request's headers without those that begin with a colon, in order, names in lower case."""


class StatusCode(IntEnum):
    """`grpc-status`: https://grpc.github.io/grpc/core/md_doc_statuscodes.html."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class Stream(Protocol):
    """The way back to the client of one call. After the call's end, everything here does nothing."""

    @property
    def congested(self) -> bool:
        """Whether so much waits for the client to read it that the call is to make no more. Its `drained` follows."""

    def send(self, message: bytes) -> None:
        """Send a message, after those before it."""

    def finish(self, status: StatusCode = StatusCode.OK, details: str = "") -> None:
        """End the call when what was sent has left. `Call.end` follows at once."""

    def pause(self) -> None:
        """Take no more from the client than has been promised: the call has enough to do."""

    def resume(self) -> None:
        """Take more again."""


class Call(Protocol):
    """One call of a method, on the server's side. What it raises ends the call as INTERNAL."""

    def receive(self, message: bytes) -> None:
        """The next message of the client."""

    def half_close(self) -> None:
        """The client has sent its last message."""

    def drained(self) -> None:
        """The stream was congested, and is so no longer."""

    @property
    def held(self) -> int:
        """Bytes of the client that the call keeps, within the memory of all bodies."""
        return 0

    def end(self) -> None:
        """The call is over, for whatever reason. A server calls this exactly once, and nothing after it."""


Method: TypeAlias = Callable[[Stream, Metadata], Call]
"""Begins a call. It may send and finish at once."""

Methods: TypeAlias = Mapping[str, Method]
"""By path: `/package.Service/Method`."""


MAX_QUESTION = 64 * 2**10
"""Bytes of a message that asks about the server itself. One as long as a body may be would hold the event loop."""


def refuses_request(stream: Stream, message: bytes) -> bool:
    """End the call if the message is too long to ask about the server."""
    if len(message) <= MAX_QUESTION:
        return False
    stream.finish(StatusCode.RESOURCE_EXHAUSTED, f"a message of {len(message)} bytes; the limit is {MAX_QUESTION}")
    return True


class Unary:
    """A question about the server, whose answer, or status, follows from one message: `answer` makes it."""

    held = 0

    def __init__(self, stream: Stream, answer: Callable[[bytes], bytes | tuple[StatusCode, str]]) -> None:
        self._stream, self._answer = stream, answer

    def receive(self, message: bytes) -> None:
        if refuses_request(self._stream, message):
            return
        answer = self._answer(message)
        if isinstance(answer, bytes):
            self._stream.send(answer)
            self._stream.finish()
        else:
            self._stream.finish(*answer)

    def half_close(self) -> None:
        """The client has sent no message: had it, the call would be over."""
        self._stream.finish(StatusCode.INVALID_ARGUMENT, "the call needs a message")

    def drained(self) -> None:
        """One answer needs no breaks."""

    def end(self) -> None:
        """Nothing is held."""

    def __repr__(self) -> str:
        return f"<Unary {self._answer!r}>"
