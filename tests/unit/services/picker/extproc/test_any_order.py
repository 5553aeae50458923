"""Whatever a proxy sends, in whatever order: nothing is raised, and every conversation completes once."""

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.picker.extproc.conversation import Conversation
from services.picker.extproc.events import Completed, Event, Limits, RequestReady, ResponseBodyStarted, ResponseStarted
from services.picker.extproc.messages import BodyMode, ProcessingRequest
from services.picker.requests.request import Refusal, Route
from tests.unit.services.picker.extproc.proxy import (
    FULL_DUPLEX,
    Proxy,
    body,
    headers,
    read,
    response_body,
    response_headers,
    trailers,
)

LIMIT = 64
MODES = st.one_of(st.none(), st.tuples(st.sampled_from(BodyMode), st.sampled_from(BodyMode)))
NAMES = st.sampled_from([":path", ":status", "x-request-id", "content-length", "content-type", "x-slo-ttft-ms", "a"])
VALUES = st.one_of(st.sampled_from(["", "5", "1000", "application/grpc"]), st.text(max_size=8))
HINTS = st.one_of(st.none(), st.text(max_size=5), st.lists(st.one_of(st.text(max_size=5), st.integers(0, 9))))


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.conversation = Conversation(Limits(request_body=LIMIT, header_count=5), lambda: "id")
        self.events: list[Event] = []
        self.waiting = False
        self.ended = False

    def take(self, events: list[Event]) -> None:
        assert not (self.completed and events), "nothing follows Completed"
        self.events.extend(events)
        self.waiting = self.waiting or any(isinstance(event, RequestReady) for event in events)

    @property
    def completed(self) -> bool:
        return any(isinstance(event, Completed) for event in self.events)

    def say(self, message: Any) -> None:
        self.take(self.conversation.receive(ProcessingRequest.FromString(message.SerializeToString()), 1.0))

    @rule(
        values=st.lists(st.tuples(NAMES, VALUES), max_size=6),
        end=st.booleans(),
        modes=MODES,
        hint=HINTS,
        phase=st.sampled_from(["request_headers", "response_headers"]),
    )
    def shows_headers(self, values: Any, end: bool, modes: Any, hint: Any, phase: str) -> None:
        self.say(headers(values, end=end, modes=modes, hint=hint, phase=phase))

    @rule(
        data=st.binary(max_size=40),
        end=st.booleans(),
        phase=st.sampled_from(["request_body", "response_body"]),
        hint=HINTS,
    )
    def shows_a_body(self, data: bytes, end: bool, phase: str, hint: Any) -> None:
        self.say(body(data, end=end, phase=phase, hint=hint))

    @rule(phase=st.sampled_from(["request_trailers", "response_trailers"]))
    def shows_trailers(self, phase: str) -> None:
        self.say(trailers(phase))

    @precondition(lambda self: self.waiting)
    @rule(destinations=st.lists(st.sampled_from(["a:1", "b:2"]), min_size=1))
    def is_routed(self, destinations: list[str]) -> None:
        self.conversation.route(Route(destinations=tuple(destinations)))
        self.waiting = False

    @precondition(lambda self: self.waiting)
    @rule(status=st.integers(0, 1000), message=st.text(max_size=20))
    def is_refused(self, status: int, message: str) -> None:
        self.conversation.refuse(Refusal(status=status, message=message))
        self.waiting = False

    @rule()
    def ends(self) -> None:
        self.take(self.conversation.end(2.0))
        self.ended = True

    @invariant()
    def answers_can_be_sent(self) -> None:
        answers = [read(one) for one in self.conversation.responses()]
        assert self.conversation.responses() == []
        refusals = [one for one in answers if one.phase == "immediate_response"]
        assert refusals == answers[-1:] or not refusals, "nothing follows a refusal"

    @invariant()
    def keeps_no_more_than_its_limit(self) -> None:
        held = self.conversation._size if self.conversation._chunks else len(self.conversation._body)
        assert held <= LIMIT

    def teardown(self) -> None:
        self.take(self.conversation.end(3.0))
        for kind in (RequestReady, ResponseStarted, ResponseBodyStarted):
            assert sum(isinstance(event, kind) for event in self.events) <= 1
        assert sum(isinstance(event, Completed) for event in self.events) == 1


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=12, deadline=None)


@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=8), by_trailers=st.booleans())
def test_wherever_a_body_is_cut_the_request_and_what_goes_back_are_the_same(
    data: bytes, cuts: list[int], by_trailers: bool
) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[a:b] for a, b in pairwise(edges)]
    proxy = Proxy()
    answers = proxy.say(headers(modes=FULL_DUPLEX))
    for i, chunk in enumerate(chunks):
        answers += proxy.say(body(chunk, end=not by_trailers and i == len(chunks) - 1))
    if by_trailers:
        answers += proxy.say(trailers())
    assert proxy.ready.body == data
    assert b"".join(one.streamed or b"" for one in answers) == data
    assert answers[0].phase == "request_headers"
    assert any(one.end for one in answers) is not by_trailers


@given(chunks=st.lists(st.tuples(st.binary(max_size=20), st.booleans()), max_size=10))
def test_each_piece_of_a_response_goes_back_as_it_came(chunks: list[tuple[bytes, bool]]) -> None:
    proxy = Proxy()
    proxy.say(headers(end=True, modes=FULL_DUPLEX))
    proxy.say(response_headers())
    for data, end in chunks:
        (answer,) = proxy.say(response_body(data, end=end))
        assert (answer.streamed, answer.end) == (data, end)
