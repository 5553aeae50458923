"""What a transport drives: one exchange a stream, which is one HTTP request."""

from collections.abc import Iterable
from typing import Protocol


class Exchange(Protocol):
    """Takes messages in and hands answers out, at once and without waiting for anything."""

    @property
    def closed(self) -> bool:
        """Whether the stream is to be ended when what was handed out is sent."""
        ...

    def receive(self, data: bytes) -> Iterable[bytes]:
        """A message of the proxy, a serialized `ProcessingRequest`; what to answer now, in order: serialized
        `ProcessingResponse`s. Those to a large message are made while they are asked for, by an iterator, which reads
        the message then. An empty one isn't to be sent: others are to have their turn then. Raises DecodeError for
        bytes that are no message."""
        ...

    def end(self) -> None:
        """The stream is over, for whatever reason. A transport calls this exactly once."""
        ...
