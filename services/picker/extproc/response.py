"""The response half of a conversation: reads a response and sends it back.

A response without a reader passes unchanged, and its chunks aren't even decoded. If the proxy doesn't show the body,
the picker requests it when the reader has to change it, or to observe it.
"""

from collections.abc import Callable, Sequence

from services.picker.extproc import outgoing, wire
from services.picker.extproc.events import NO_HEADERS, Event, ResponseBodyStarted, ResponseStarted
from services.picker.extproc.headers import read_headers, read_status
from services.picker.extproc.incoming import Message
from services.picker.extproc.messages import BodyMode
from services.picker.extproc.outgoing import PIECE
from services.picker.request import Headers
from services.picker.responses.reader import CHANGE, NOTHING, ResponseReader
from shared.content_length import content_length

WHOLE = 256 * 2**10
"""Bytes of a response that a proxy is asked for as a whole: less than any holds by default (Envoy's 1 MiB)."""

_FULL_DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
_STREAMED = BodyMode.STREAMED
_BUFFERED = BodyMode.BUFFERED
_NONE = BodyMode.NONE
_ECHOED = (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.GRPC)
_IN_PIECES = (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.STREAMED)
_UNCHANGED = (outgoing.RESPONSE_BODY_UNCHANGED,)
_READABLE = (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.STREAMED, BodyMode.BUFFERED)


class Response:
    """One response. Each method appends the answers to its message, and returns the events."""

    def __init__(self, mode: BodyMode, max_headers: int = 1000) -> None:
        """The body of a response with more than `max_headers` isn't read."""
        self.mode = mode
        """How the proxy sends the body."""
        self._max_headers = max_headers
        self._reader: ResponseReader | None = None
        self._observe: Callable[[], bool] = bool  # no
        self._report_headers = False
        self._pieces: wire.ChunkReader | None = None
        """Set while chunks go back undecoded."""
        self._body_started = False
        self._over = False
        self.started = False
        self.received = 0
        """Bytes of the body that were shown."""
        self.requested = False
        """Whether the picker requested the body."""
        self.requested_to_observe = False
        """Whether it did so only to observe the response."""
        self.readable = False
        """Whether a reader can read its tokens, if the proxy sends the body."""
        self.observed = False
        """Whether the reader got such a body."""

    @property
    def seen(self) -> bool:
        """Whether it began, at a proxy that needn't show where it ends, or was shown whole."""
        if self._body_started:
            return self.mode is _BUFFERED
        return self.started and (self.mode is _NONE or self.requested)

    def expect(
        self, reader: ResponseReader | None, observe: Callable[[], bool], *, report_headers: bool = False
    ) -> None:
        """The request is routed: `reader` reads the response. `observe` says whether to request a body that it only
        reads, and `report_headers` whether anyone else reads the headers."""
        self._reader, self._observe, self._report_headers = reader, observe, report_headers

    def headers(self, message: Message, answers: list[bytes]) -> list[Event]:
        """The response headers. Those of a second response are answered, and no event."""
        shown = message.shown
        if self.started:
            answers.append(outgoing.RESPONSE_HEADERS_UNCHANGED)
            return []
        self.started = True
        headers, answer = NO_HEADERS, outgoing.RESPONSE_HEADERS_UNCHANGED
        reader, self._reader = self._reader, None
        status = read_status(shown)
        if (reader is not None or self._report_headers) and len(shown.entries) <= self._max_headers:
            headers = read_headers(shown)
            if reader is not None and not shown.end_of_stream:
                answer = self._answer_headers(reader, headers, status)
        answers.append(answer)
        return [ResponseStarted(status, message.context.served, headers if self._report_headers else NO_HEADERS)]

    def _answer_headers(self, reader: ResponseReader, headers: Headers, status: int | None) -> bytes:
        """Decides whether to read the body, and requests it if the proxy doesn't send it."""
        interest = reader.begin(headers)
        changes = interest is CHANGE
        answers = interest is not NOTHING and (status or 0) < 300  # an error has no tokens
        asked = None
        if self.mode is _NONE and (changes or answers):
            asked = _requested_mode(headers, reader.limit, changes=changes)
            self.readable = answers and asked is not None
            if asked is not None and not (changes or self._observe()):
                asked = None
            self.mode = asked or _NONE
            self.requested = asked is not None
            self.requested_to_observe = self.requested and not changes
        if interest is NOTHING or self.mode not in _READABLE:
            return outgoing.RESPONSE_HEADERS_UNCHANGED
        self.readable = answers
        reader.holds = self.mode is not _STREAMED
        self._reader = reader
        if asked is None and (not changes or self.mode is _BUFFERED):
            return outgoing.RESPONSE_HEADERS_UNCHANGED
        return outgoing.answer_response_headers(asked, changes=changes)

    def body(self, message: Message, answers: list[bytes]) -> list[Event]:
        """A piece of the body, or all of it."""
        chunk = message.shown
        ended = chunk.end_of_stream or chunk.end_of_stream_without_message
        self.received += len(chunk.body)
        if self._reader is not None:
            whole = ended or self.mode is _BUFFERED  # also when trailers follow and it isn't the end of the stream
            self._send(chunk.body, self._reader.feed(chunk.body, whole), ended, answers)
        elif self.mode in _ECHOED:
            answers.append(outgoing.echo_response(chunk))
        else:
            answers.append(outgoing.RESPONSE_BODY_UNCHANGED)
        if self._body_started or self._over or not chunk.body:
            return []
        self._body_started = True
        self.observed = self._reader is not None and self.readable
        if self.started and self.mode in _IN_PIECES:
            self._pieces = wire.ChunkReader()
        return [ResponseBodyStarted()]

    def relay(self, data: bytes) -> Sequence[bytes] | None:
        """The serialized answers to a message that is nothing but a piece in the middle of the body; None for every
        other message, and at the body's beginning, where there are events to tell."""
        pieces = self._pieces
        if pieces is None:
            return None
        body = pieces.body(data)
        if not body:
            return None
        self.received += len(body)
        goes_on = body if self._reader is None else self._reader.feed(body, False)
        if self.mode is _STREAMED:  # an unchanged piece isn't sent back
            return _UNCHANGED if goes_on == body else (outgoing.replace_response(goes_on, whole=False),)
        if len(goes_on) <= PIECE or self._reader is None:
            return (wire.echo(goes_on),) if goes_on else ()
        return [wire.echo(goes_on[start : start + PIECE]) for start in range(0, len(goes_on), PIECE)]

    def trailers(self, answers: list[bytes]) -> None:
        """The response trailers, which end the body too. What a reader still holds can be sent before them only where
        bodies are echoed: in STREAMED, where it held no more, the beginning of a name in which the body broke off is
        lost."""
        if self._reader is not None and (held := self._reader.feed(b"", True)) and self.mode is _FULL_DUPLEX:
            self._send(b"", held, False, answers)
        self.complete()
        answers.append(outgoing.RESPONSE_TRAILERS_UNCHANGED)

    def complete(self) -> None:
        """Nothing of the body follows; what a proxy shows nevertheless is answered, and no event."""
        if self._reader is not None:
            self._reader.drop()
        self._reader = self._pieces = None
        self._over = True

    def _send(self, shown: bytes, body: bytes, end: bool, answers: list[bytes]) -> None:
        """Send `body` on in place of what was shown."""
        if self.mode is _FULL_DUPLEX:
            if body or end:
                answers.extend(outgoing.echoing((body,), end, phase="response_body"))
        elif body == shown:
            answers.append(outgoing.RESPONSE_BODY_UNCHANGED)
        else:
            answers.append(outgoing.replace_response(body, whole=self.mode is _BUFFERED))


def _requested_mode(headers: Headers, limit: int, *, changes: bool) -> BodyMode | None:
    """How to ask for a body: whole, where it is to be changed and says that any proxy can hold it, else as a stream;
    None for one of more than `limit` bytes, which isn't read anyway. One that is only read keeps its length in a
    stream, too, and needn't wait for its end."""
    declared = headers.get("content-length")
    if not declared:
        return _STREAMED
    length = content_length(declared)
    if length is None or length > limit:
        return None
    return _BUFFERED if changes and length <= WHOLE else _STREAMED
