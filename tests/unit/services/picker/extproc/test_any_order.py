"""Whatever a proxy sends, in whatever order: nothing is raised, and every conversation completes once."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.picker.body_buffer import MemoryBudget
from services.picker.extproc.conversation import Conversation
from services.picker.extproc.events import Completed, Event, Limits, RequestReady, ResponseBodyStarted, ResponseStarted
from services.picker.extproc.messages import BodyMode
from services.picker.parsers.json_edit import replace_model
from services.picker.request import Headers, Refusal, Route
from services.picker.responses.reader import ResponseReader
from tests.unit.services.picker.extproc.proxy import (
    Answer,
    Proxy,
    body,
    headers,
    read,
    response_body,
    response_trailers,
    trailers,
)

LIMIT = 64
HELD = 80
"""Bytes that the readers hold at most."""
TOGETHER = 60
"""Bytes that body and response may hold together."""
MODES = st.one_of(st.none(), st.tuples(st.sampled_from(BodyMode), st.sampled_from(BodyMode)))
NAMES = st.sampled_from([":path", ":status", "x-request-id", "content-length", "content-type", "x-slo-ttft-ms", "a"])
VALUES = st.one_of(
    st.sampled_from(["", "5", "1000", "application/grpc", "application/json", "text/event-stream"]), st.text(max_size=8)
)
HINTS = st.one_of(st.none(), st.text(max_size=5), st.lists(st.one_of(st.text(max_size=5), st.integers(0, 9))))
JSON = [b'{"model":"client","n":1}', b'{"model":"tuned","usage":{"prompt_tokens":1}}']
PIECES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([*JSON, JSON[1][:20], JSON[1][20:], b'data: {"model":"tuned"}\n\n', b"data: ", b"}", b"\n"]),
)


def renamed(data: bytes) -> bytes | None:
    """A request's body for the model `tuned`; None for one that isn't JSON."""
    try:
        return b"".join(replace_model(data, "tuned"))
    except ValueError:
        return None


class AnyOrder(RuleBasedStateMachine):
    """Drives a conversation as a transport does: messages that it can relay aren't decoded."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = MemoryBudget(TOGETHER)
        self.conversation = Conversation(Limits(request_body=LIMIT, header_count=5), lambda: "id", budget=self.budget)
        self.reader: ResponseReader | None = None
        self.events: list[Event] = []
        self.waiting: RequestReady | None = None
        self.over = False
        """Whether the proxy has heard the last word."""

    def take(self, events: list[Event]) -> None:
        assert not (self.completed and events), "nothing follows Completed"
        self.events.extend(events)
        for event in events:
            if isinstance(event, RequestReady):
                self.waiting = event

    @property
    def completed(self) -> bool:
        return any(isinstance(event, Completed) for event in self.events)

    def say(self, message: Any) -> None:
        wire = message.SerializeToString()
        relayed = self.conversation.response.relay(wire)
        if relayed is None:
            self.take(self.conversation.receive(wire, 1.0))
            return
        assert not self.over
        for answer in relayed:
            assert read(answer).phase == "response_body"

    @rule(
        values=st.lists(st.tuples(NAMES, VALUES), max_size=6),
        end=st.booleans(),
        modes=MODES,
        hint=HINTS,
        phase=st.sampled_from(["request_headers", "response_headers"]),
    )
    def shows_headers(self, values: Any, end: bool, modes: Any, hint: Any, phase: str) -> None:
        self.say(headers(values, end=end, modes=modes, hint=hint, phase=phase))

    @rule(data=PIECES, end=st.booleans(), phase=st.sampled_from(["request_body", "response_body"]), hint=HINTS)
    def shows_a_body(self, data: bytes, end: bool, phase: str, hint: Any) -> None:
        self.say(body(data, end=end, phase=phase, hint=hint))

    @rule(phase=st.sampled_from(["request_trailers", "response_trailers"]))
    def shows_trailers(self, phase: str) -> None:
        self.say(trailers(phase))

    @precondition(lambda self: self.waiting is not None)
    @rule(
        destinations=st.lists(st.sampled_from(["a:1", "b:2"]), min_size=1),
        rename=st.booleans(),
        reads=st.sampled_from(["no", "yes", "changes"]),
    )
    def is_routed(self, destinations: list[str], rename: bool, reads: str) -> None:
        assert self.waiting is not None
        body = self.waiting.body
        changed = renamed(body) if rename else None
        if reads != "no":
            self.reader = ResponseReader("tuned" if reads == "changes" else "", "client", HELD, budget=self.budget)
        model = None if changed is None else "tuned"
        self.conversation.route(Route(destinations=tuple(destinations), target_model=model), self.reader)
        self.waiting = None
        answers = self.hear()
        self.conversation.sent()
        expected = body if changed is None else changed
        echoed = [
            answer.streamed for answer in answers if answer.phase == "request_body" and answer.streamed is not None
        ]
        if echoed:
            assert b"".join(echoed) == expected
        for answer in answers:
            assert answer.replaced is None or (answer.phase == "request_body" and answer.replaced == changed)

    @precondition(lambda self: self.waiting is not None)
    @rule(status=st.integers(0, 1000), message=st.text(max_size=20))
    def is_refused(self, status: int, message: str) -> None:
        self.conversation.refuse(Refusal(status=status, message=message))
        self.waiting = None

    @rule()
    def ends(self) -> None:
        self.take(self.conversation.end(2.0))
        self.over = True

    def hear(self) -> list[Answer]:
        answers = [read(response) for response in self.conversation.responses()]
        assert not (answers and self.over), "nothing is said to a proxy that has gone, or was refused"
        refusals = [answer for answer in answers if answer.phase == "immediate_response"]
        assert refusals == answers[-1:] or not refusals, "nothing follows a refusal"
        self.over = self.over or bool(refusals)
        return answers

    @invariant()
    def answers_can_be_sent_and_are_handed_out_once(self) -> None:
        self.hear()
        assert self.conversation.responses() == []

    @invariant()
    def keeps_no_more_than_its_limits(self) -> None:
        assert self.conversation.body_size <= LIMIT
        if self.reader is not None:
            assert self.reader._buffer.size <= HELD
        read = 0 if self.reader is None else self.reader._buffer.size
        assert self.budget.used == self.conversation.body_size + read <= TOGETHER

    def teardown(self) -> None:
        self.hear()
        self.take(self.conversation.end(3.0))
        for kind in (RequestReady, ResponseStarted, ResponseBodyStarted):
            assert sum(isinstance(event, kind) for event in self.events) <= 1
        assert sum(isinstance(event, Completed) for event in self.events) == 1
        assert isinstance(self.events[-1], Completed)
        assert self.budget.used == 0


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=15, deadline=None)


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


CUTS = st.lists(st.integers(0, 300), max_size=8)
NAME = b'"tuned"'


# -- what a client gets of a response


TEXTS = st.text(max_size=30).map(lambda text: json.dumps(text).encode())
OBJECTS = st.builds(
    lambda first, text, blank: b'%s{"model":%s"tuned","text":%s}%s' % (first, blank, text, blank),
    st.sampled_from([b"", b" \n"]),
    TEXTS,
    st.sampled_from([b"", b" ", b"\n"]),
)
EVENTS = st.lists(
    st.one_of(
        OBJECTS.map(lambda text: b"data: " + text.replace(b"\n", b"") + b"\n\n"),
        st.sampled_from([b": comment\n\n", b"event: ping\r\ndata:{}\r\n\r\n", b"data: [DONE]\n\n", b"\n"]),
    ),
    max_size=5,
).map(b"".join)


def begun(text: bytes) -> st.SearchStrategy[bytes]:
    return st.integers(0, len(text)).map(lambda end: text[:end])


RESPONSES = st.one_of(
    st.tuples(st.just("application/json"), OBJECTS),
    st.tuples(st.just("text/event-stream"), EVENTS),
    st.tuples(st.sampled_from(["application/json", "text/event-stream"]), st.binary(max_size=200)),
    st.tuples(st.just("text/plain"), OBJECTS),
    st.tuples(st.just("application/json"), OBJECTS.flatmap(begun)),
    st.tuples(
        st.just("text/event-stream"), OBJECTS.flatmap(begun).map(lambda text: b"data: " + text.replace(b"\n", b""))
    ),
)


class Client:
    """What a client behind a proxy gets of a response: a proxy applies answers in its body mode."""

    def __init__(self, proxy: Proxy, mode: BodyMode) -> None:
        self.proxy = proxy
        self.mode = mode
        self.got: list[bytes] = []

    def show(self, piece: bytes, end: bool) -> None:
        if self.mode is BodyMode.NONE:
            self.got.append(piece)
            return
        answers = self.proxy.say(response_body(piece, end=end))
        if self.mode in (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.GRPC):
            self.take_echo(answers)
            assert any(answer.end for answer in answers) is end
        else:
            (answer,) = answers
            assert answer.streamed is None
            self.got.append(piece if answer.replaced is None else answer.replaced)

    def take_echo(self, answers: list[Answer]) -> None:
        for answer in answers:
            if answer.phase == "response_body":
                assert answer.streamed is not None
                self.got.append(answer.streamed)

    def show_trailers(self) -> None:
        *before, last = self.proxy.say(response_trailers())
        assert last.phase == "response_trailers"
        assert not before or self.mode is BodyMode.FULL_DUPLEX_STREAMED, "no other mode takes a piece with the trailers"
        self.take_echo(before)


def restored(data: bytes) -> bytes:
    """A body that broke off, with the name put back as far as it came."""
    return data.replace(b'"tuned"', b'"the client\'s"', 1)


@settings(max_examples=400, deadline=None)
@given(
    response=RESPONSES,
    cuts=CUTS,
    mode=st.sampled_from(BodyMode),
    follows=st.booleans(),
    renames=st.booleans(),
    length=st.booleans(),
    ending=st.sampled_from(["last piece", "an empty piece", "trailers"]),
)
def test_a_client_gets_every_byte_of_a_response_and_its_own_model_however_the_proxy_shows_it(
    response: tuple[str, bytes],
    cuts: list[int],
    mode: BodyMode,
    follows: bool,
    renames: bool,
    length: bool,
    ending: str,
) -> None:
    """`follows`: whether the proxy heeds a `mode_override`, which it needn't."""
    kind, data = response
    reader = ResponseReader("tuned" if renames else "", "the client's")
    proxy = Proxy(reader=reader)
    proxy.say(headers({":method": "POST"}, modes=(BodyMode.BUFFERED, mode)))
    proxy.say(body(b"{}", end=True))
    sent = {":status": "200", "content-type": kind} | ({"content-length": str(len(data))} if length else {})
    (begun,) = proxy.say(headers(sent, phase="response_headers"))
    if begun.asked is not None:
        assert mode is BodyMode.NONE
        mode = begun.asked if follows else mode
    client = Client(proxy, mode)
    whole = mode in (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
    chunks = [data] if whole else pieces(data, cuts)
    for index, chunk in enumerate(chunks):
        client.show(chunk, ending == "last piece" and index == len(chunks) - 1)
    if ending == "trailers":
        client.show_trailers()
    elif ending == "an empty piece" and not whole:
        client.show(b"", True)
    got = b"".join(client.got)
    readable = mode in (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.STREAMED, BodyMode.BUFFERED)
    alone = ResponseReader("tuned" if renames else "", "the client's")
    alone.begin(Headers([("content-type", kind)]))
    expected = alone.feed(data, True) if readable and renames else data
    if mode is BodyMode.STREAMED and renames and got != expected:
        assert expected == data, "of an object that breaks off, what was there has gone on with the name restored"
        lost = 0 if ending != "trailers" else max(n for n in range(len(NAME)) if data.endswith(NAME[:n]))
        assert got in (restored(data), data[: len(data) - lost]), "nothing is lost but a part of the name at the end"
    else:
        assert got == expected
    ended = mode is not BodyMode.NONE and (ending == "last piece" or not whole)
    if ended or ending == "trailers":
        assert isinstance(proxy.events[-1], Completed)
    proxy.hang_up()
    assert sum(isinstance(event, Completed) for event in proxy.events) == 1
