"""What a transport drives: one exchange a stream, which is one HTTP request."""

from collections.abc import Sequence
from typing import Protocol

from services.picker.extproc.messages import ProcessingRequest, ProcessingResponse


class Exchange(Protocol):
    """Takes messages in and hands answers out, at once and without waiting for anything."""

    @property
    def closed(self) -> bool:
        """Whether the stream is to be ended when what was handed out is sent."""
        ...

    def relay(self, data: bytes) -> Sequence[bytes] | None:
        """The serialized answers to a message that needn't be decoded; None for one that does."""
        ...

    def receive(self, message: ProcessingRequest) -> Sequence[ProcessingResponse]:
        """A message of the proxy; what to answer now, in order."""
        ...

    def end(self) -> None:
        """The stream is over, for whatever reason. A transport calls this exactly once."""
        ...
