"""What a proxy says to a picker in whole conversations, for benchmarks that have many different ones.

Half of every prompt is one of 16 that recur, as system prompts do; the other half is new. The response comes from the
endpoint that the picker has chosen.
"""

import re
from collections.abc import Iterable, Sequence

from services.picker.extproc.messages import ProcessingRequest
from services.picker.request_handler import RequestHandler
from services.picker.request_stream import RequestStream
from tests.benchmarks.bench_conversation import EVENT, FULL_DUPLEX, LEAN, REQUEST_HEADERS, USAGE, chat_body, wire
from tests.benchmarks.http2_client import END, Turn
from tests.unit.services.picker.extproc.proxy import body, headers, response_body, response_headers, response_trailers

CHUNKS = 200
PREFIXES = 16
BODY = 1
"""The turn with the request's body, after which the picker chooses."""
_AUTHORITY = re.compile(rb"1(?:0|27)\.1\.\d{3}\.\d{3}:\d+")
_NUMBER = b"0" * 12
_STREAM = {":status": "200", "content-type": "text/event-stream"}


class Talk:
    """The turns of conversations with these messages after the body. Pass it to an `Http2Client`."""

    def __init__(self, size: int, after: Sequence[bytes], *, full_duplex: bool = False, model: bytes = b"base") -> None:
        """The first message of `after` are the response headers, without the endpoint that serves."""
        modes = FULL_DUPLEX if full_duplex else LEAN
        sent = chat_body(size).replace(b"base", model, 1)
        (self._head,) = wire(headers({**REQUEST_HEADERS, "content-length": str(len(sent))}, modes=modes))
        bodies = wire(*(body(_prompt(sent, prefix), end=True) for prefix in range(PREFIXES)))
        self._bodies = [body.split(_NUMBER, 1) for body in bodies]
        self._served: dict[bytes, Turn] = {}
        self._turns: list[Turn] = [((message,), 1) for message in after]
        self._after = after
        self._full_duplex = full_duplex
        self.holds = False
        """Whether responses are kept waiting."""
        self.held = 0
        """How many have been."""

    def __call__(self, number: int, turn: int, answers: bytes) -> Turn | None:
        turn += self._full_duplex  # such a proxy waits for nothing before the body
        if turn == 0:
            return (self._head,), 1
        if turn == 1:
            before, rest = self._bodies[number % PREFIXES]
            whole = b"%b%012d%b" % (before, number, rest)
            return ((self._head, whole), 2) if self._full_duplex else ((whole,), 1)
        if turn == 2:
            if self.holds:
                self.held += 1
                return None
            return self._response(answers)
        return self._turns[turn - 2] if turn - 2 < len(self._turns) else END

    def _response(self, answers: bytes) -> Turn:
        """The response headers, from the endpoint that an answer names."""
        found = _AUTHORITY.search(answers)
        assert found is not None, f"the picker has chosen an endpoint: {answers!r}"
        authority = found.group()
        made = self._served.get(authority)
        if made is None:
            made = self._served[authority] = ((_served_by(self._after[0], authority),), 1)
        return made

    def messages(self, authority: bytes) -> list[bytes]:
        """Those of one conversation, for clients that send them all at once."""
        before, rest = self._bodies[0]
        return [self._head, before + _NUMBER + rest, _served_by(self._after[0], authority), *self._after[1:]]

    def without_transport(self, handler: RequestHandler, number: int) -> None:
        """One conversation from bytes to bytes."""
        stream, turn, answers = RequestStream(handler), 0, b""
        while (messages := self(number, turn, answers)) is not None and messages[0]:
            answers = b"".join(answer for message in messages[0] for answer in stream.receive(message))
            turn += 1
        stream.end()


def _served_by(message: bytes, authority: bytes) -> bytes:
    """The response headers of this endpoint."""
    shown = ProcessingRequest.FromString(message)
    shown.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": authority.decode()})
    made: bytes = shown.SerializeToString()
    return made


def _prompt(sent: bytes, prefix: int) -> bytes:
    """The body with a number of its prefix, and room for one of its own in the middle."""
    start = sent.index(b"The quick")
    middle = (start + len(sent)) // 2
    prompt = b"%04d" % prefix + sent[start + 4 : middle] + _NUMBER + sent[middle + len(_NUMBER) :]
    return sent[:start] + prompt


def _event_stream(content_type: str = "text/event-stream") -> Iterable[bytes]:
    return wire(
        headers({**_STREAM, "content-type": content_type}, phase="response_headers"),
        *(response_body(chunk, end=chunk is USAGE) for chunk in [EVENT] * (CHUNKS - 1) + [USAGE]),
    )


def plain(size: int = 1_000) -> Talk:
    """Four messages: headers, body, response headers, trailers."""
    return Talk(size, wire(response_headers(), response_trailers()))


def lean() -> Talk:
    """The same before an event stream, whose chunks the proxy keeps to itself unless it is asked for them."""
    return Talk(1_000, wire(headers(_STREAM, phase="response_headers"), response_trailers()))


def observed() -> Talk:
    """The same after it has been asked."""
    return Talk(1_000, [*list(_event_stream())[:-1], *wire(response_body(USAGE), response_body(b"", end=True))])


def unread() -> Talk:
    """Chunks of a proxy that sends all bodies, in a response that nobody reads."""
    return Talk(1_000, list(_event_stream("text/plain")), full_duplex=True)


def restored(model: bytes) -> Talk:
    """The same in an event stream of which usage is read, and in which the client's `model` is put back."""
    return Talk(1_000, list(_event_stream()), full_duplex=True, model=model)
