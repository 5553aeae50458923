"""Whole conversations, in the ways that proxies have them."""

from collections.abc import Sequence

import pytest

from services.picker.extproc.events import (
    Completed,
    Limits,
    RequestReady,
    ResponseStarted,
)
from services.picker.extproc.messages import BodyMode
from services.picker.extproc.outgoing import PIECE, Mutation
from services.picker.extproc.request_answers import request_answers
from services.picker.request import Refusal, Route
from tests.unit.services.picker.extproc.proxy import (
    FULL_DUPLEX,
    LEAN,
    ROUTE,
    Proxy,
    body,
    headers,
    pb,
    response_body,
    response_headers,
    response_trailers,
    trailers,
)

JSON = b'{"model":"base","prompt":"hi"}'
Step = tuple[object, list[str]]


def modes(request: BodyMode, response: BodyMode = BodyMode.NONE) -> tuple[BodyMode, BodyMode]:
    return (request, response)


CONVERSATIONS: dict[str, Sequence[Step]] = {
    "full duplex: the headers' answer waits for the end of the body, which goes back": [
        (headers({":method": "POST"}, modes=FULL_DUPLEX), []),
        (body(b"ab"), []),
        (body(b"c", end=True), ["request_headers to 10.0.0.1:8000", "request_body echo 3 end"]),
        (response_headers(), ["response_headers"]),
        (response_body(b"xy"), ["response_body echo 2"]),
        (response_body(b"z", end=True), ["response_body echo 1 end"]),
    ],
    "full duplex: a body without a byte goes back as one empty piece": [
        (headers(modes=FULL_DUPLEX), []),
        (body(end=True), ["request_headers to 10.0.0.1:8000", "request_body echo 0 end"]),
    ],
    "full duplex: request trailers end the body, and are answered after its pieces": [
        (headers(modes=FULL_DUPLEX), []),
        (body(b"abc"), []),
        (trailers(), ["request_headers to 10.0.0.1:8000", "request_body echo 3", "request_trailers"]),
    ],
    "full duplex: trailers without a body": [
        (headers(modes=FULL_DUPLEX), []),
        (trailers(), ["request_headers to 10.0.0.1:8000", "request_trailers"]),
    ],
    "full duplex: trailers after an answered body are answered at once": [
        (headers(modes=FULL_DUPLEX), []),
        (body(b"abc", end=True), ["request_headers to 10.0.0.1:8000", "request_body echo 3 end"]),
        (trailers(), ["request_trailers"]),
    ],
    "full duplex: a gRPC response ends with its trailers": [
        (headers(modes=FULL_DUPLEX), []),
        (body(b"abc", end=True), ["request_headers to 10.0.0.1:8000", "request_body echo 3 end"]),
        (response_headers(), ["response_headers"]),
        (response_body(b"frame"), ["response_body echo 5"]),
        (response_trailers(), ["response_trailers"]),
    ],
    "buffered and lean: the headers are answered at once, the body's answer decides and echoes nothing": [
        (headers({":method": "POST"}, modes=LEAN), ["request_headers"]),
        (body(JSON, end=True), ["request_body to 10.0.0.1:8000"]),
        (response_headers(), ["response_headers"]),
        (response_trailers(), ["response_trailers"]),
    ],
    "buffered: a body before trailers is whole, though it isn't the end of the stream": [
        (headers(modes=LEAN), ["request_headers"]),
        (body(JSON), ["request_body to 10.0.0.1:8000"]),
        (trailers(), ["request_trailers"]),
    ],
    "buffered: trailers without a body can't say where the request goes": [
        (headers(modes=LEAN), ["request_headers"]),
        (trailers(), ["immediate_response 400"]),
    ],
    "buffered partial: the one message decides": [
        (headers(modes=modes(BodyMode.BUFFERED_PARTIAL)), ["request_headers"]),
        (body(JSON), ["request_body to 10.0.0.1:8000"]),
    ],
    "buffered: response bodies are acknowledged, not echoed": [
        (headers(modes=modes(BodyMode.BUFFERED, BodyMode.BUFFERED)), ["request_headers"]),
        (body(JSON, end=True), ["request_body to 10.0.0.1:8000"]),
        (response_headers(), ["response_headers"]),
        (response_body(b"whole", end=True), ["response_body"]),
    ],
    "none: the headers decide": [
        (headers(modes=modes(BodyMode.NONE)), ["request_headers to 10.0.0.1:8000"]),
        (response_headers(), ["response_headers"]),
    ],
    "streamed: the headers decide, and chunks are acknowledged both ways": [
        (headers(modes=modes(BodyMode.STREAMED, BodyMode.STREAMED)), ["request_headers to 10.0.0.1:8000"]),
        (body(b"a"), ["request_body"]),
        (body(b"b", end=True), ["request_body"]),
        (response_headers(), ["response_headers"]),
        (response_body(b"a"), ["response_body"]),
        (response_body(end=True), ["response_body"]),
    ],
    "grpc mode: response messages go back as they came": [
        (headers(modes=modes(BodyMode.BUFFERED, BodyMode.GRPC)), ["request_headers"]),
        (body(JSON, end=True), ["request_body to 10.0.0.1:8000"]),
        (response_headers(), ["response_headers"]),
        (response_body(b"message"), ["response_body echo 7"]),
    ],
    "grpc mode: request bodies are refused with what would be right": [
        (headers(modes=modes(BodyMode.GRPC)), ["immediate_response 500"]),
    ],
    "a proxy that hides the request headers hears the decision with the body": [
        (body(JSON, end=True), ["request_body to 10.0.0.1:8000 echo 30 end"]),
    ],
    "a response before any request is answered": [
        (response_headers(), ["response_headers"]),
        (response_body(b"a"), ["response_body echo 1"]),
        (response_body(end=True), ["response_body echo 0 end"]),
    ],
    "a response that the proxy gives by itself ends the request's half": [
        (headers(modes=FULL_DUPLEX), []),
        (body(b"a"), []),
        (response_headers(504), ["response_headers"]),
        (body(b"b", end=True), []),
        (response_body(end=True), ["response_body echo 0 end"]),
    ],
    "a message without a phase is not answered": [
        (pb.ProcessingRequest(), []),
        (headers(modes=LEAN), ["request_headers"]),
    ],
    "a second set of response headers is answered, and counts for nothing": [
        (headers(end=True), ["request_headers to 10.0.0.1:8000"]),
        (response_headers(200), ["response_headers"]),
        (response_headers(500), ["response_headers"]),
    ],
    "a second set of request headers is not answered": [
        (headers(modes=LEAN), ["request_headers"]),
        (headers(), []),
        (body(JSON, end=True), ["request_body to 10.0.0.1:8000"]),
    ],
}
for _mode in BodyMode:
    CONVERSATIONS[f"a request without a body is decided at its headers, in mode {_mode.name}"] = [
        (headers({":method": "GET"}, end=True, modes=modes(_mode)), ["request_headers to 10.0.0.1:8000"]),
        (response_headers(end=True), ["response_headers"]),
    ]


@pytest.mark.parametrize("steps", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_whole_conversation(steps: Sequence[Step]) -> None:
    proxy = Proxy()
    for message, expected in steps:
        assert [str(answer) for answer in proxy.say(message)] == expected
    proxy.hang_up()
    assert sum(isinstance(event, Completed) for event in proxy.events) == 1
    assert isinstance(proxy.events[-1], Completed)


@pytest.mark.parametrize(
    ("size", "pieces"),
    [(0, [0]), (1, [1]), (PIECE, [PIECE]), (PIECE + 1, [PIECE, 1]), (2 * PIECE + 1000, [PIECE, PIECE, 1000])],
)
def test_a_large_body_goes_back_in_pieces_of_which_the_last_ends_it(size: int, pieces: list[int]) -> None:
    sent = bytes(i % 251 for i in range(size))
    proxy = Proxy()
    proxy.say(headers(modes=FULL_DUPLEX))
    echoes = proxy.say(body(sent, end=True))[1:]
    assert [len(echo.streamed or b"") for echo in echoes] == pieces
    assert b"".join(echo.streamed or b"" for echo in echoes) == sent
    assert [echo.end for echo in echoes] == [False] * (len(pieces) - 1) + [True]


@pytest.mark.parametrize("decided_by", ["headers", "body"])
def test_many_body_messages_that_wait_are_answered_one_at_a_time(decided_by: str) -> None:
    answers, rest = request_answers(
        Mutation(destination="10.0.0.1:8000"),
        (JSON,),
        len(JSON),
        headers=decided_by == "headers",
        chunks=10**15,
        trailers=True,
        streamed=False,
    )
    assert rest is not None
    assert [pb.ProcessingResponse.FromString(answer).WhichOneof("response") for answer in (*answers, next(rest))] == [
        f"request_{decided_by}",
        "request_body",
    ]


def test_control_headers_of_clients_are_removed_in_both_spellings_and_any_case() -> None:
    proxy = Proxy(lambda _: Route(destinations=("10.0.0.1:8000",), set_headers={"x-prefiller-host-port": "10.0.0.9:1"}))
    sent = {
        "X-LLM-D-Inference-Objective": "a",
        "x-gateway-inference-objective": "b",
        "x-gateway-inference-fairness-id": "c",
        "x-llm-d-model-name-rewrite": "d",
        "x-slo-ttft-ms": "100",
        "x-encoder-hosts-ports": "evil:80",
        "x-prefiller-host-port": "evil:80",
        "x-prefiller-url": "http://evil:80",
        "x-gateway-destination-endpoint": "evil:80",
        "x-kept": "e",
    }
    answer = proxy.say(headers(sent, end=True, modes=LEAN))[0]
    assert answer.remove_headers == (
        "x-encoder-hosts-ports",
        "x-gateway-inference-fairness-id",
        "x-gateway-inference-objective",
        "x-llm-d-inference-objective",
        "x-llm-d-model-name-rewrite",
        "x-prefiller-url",
        "x-slo-ttft-ms",
    )
    assert answer.set_headers["x-gateway-destination-endpoint"] == "10.0.0.1:8000"
    assert answer.set_headers["x-prefiller-host-port"] == "10.0.0.9:1"


@pytest.mark.parametrize(
    ("sent", "id", "served_header"),
    [
        ({}, "made-id", "made-id"),
        ({"x-request-id": ""}, "made-id", "made-id"),
        ({"X-Request-ID": "theirs"}, "theirs", None),
    ],
)
def test_a_request_without_an_id_gets_one_which_the_server_sees(
    sent: dict[str, str], id: str, served_header: str | None
) -> None:
    proxy = Proxy()
    answer = proxy.say(headers(sent, end=True))[0]
    assert (proxy.ready.head.request_id, answer.set_headers.get("x-request-id")) == (id, served_header)


def test_the_head_tells_path_method_headers_and_time() -> None:
    proxy = Proxy()
    proxy.say(headers([(":method", "POST"), (":path", "/v1/x?y=1"), ("cookie", "a"), ("cookie", "b")], modes=LEAN))
    proxy.say(body(JSON, end=True))
    head = proxy.ready.head
    assert (head.method, head.path, head.received_at) == ("POST", "/v1/x?y=1", 1.0)
    assert (head.headers.all("cookie"), proxy.ready.body) == (("a", "b"), JSON)


def test_a_path_may_come_from_the_headers_that_gateways_keep_it_in() -> None:
    proxy = Proxy()
    proxy.say(headers({"x-forwarded-path": "/f", "x-original-path": "/o"}, end=True))
    assert proxy.ready.head.path == "/o"


@pytest.mark.parametrize(
    ("mode", "end", "has_body", "truncated", "withheld"),
    [
        (BodyMode.BUFFERED, False, True, False, False),
        (BodyMode.BUFFERED_PARTIAL, False, True, True, False),
        (BodyMode.FULL_DUPLEX_STREAMED, False, True, False, False),
        (BodyMode.NONE, False, False, False, True),
        (BodyMode.STREAMED, False, False, False, True),
        (BodyMode.NONE, True, False, False, False),
    ],
)
def test_the_head_tells_what_was_shown_of_the_body(
    mode: BodyMode, end: bool, has_body: bool, truncated: bool, withheld: bool
) -> None:
    proxy = Proxy()
    proxy.say(headers(modes=modes(mode), end=end))
    if not end:
        proxy.say(body(JSON))
        proxy.say(trailers())
    head = proxy.ready.head
    assert (head.has_body, head.truncated, head.withheld) == (has_body, truncated, withheld)


@pytest.mark.parametrize("mode", [None, 99], ids=["no modes", "a mode from the future"])
def test_a_proxy_that_announces_no_modes_that_are_known_has_those_of_gateways(mode: int | None) -> None:
    proxy = Proxy()
    message = headers()
    if mode is not None:
        message.protocol_config.request_body_mode = mode
    assert proxy.say(message) == []
    (answer, echo) = proxy.say(body(JSON, end=True))
    assert (answer.phase, echo.streamed) == ("request_headers", JSON)


# -- subset hint


@pytest.mark.parametrize(
    ("hint", "subset"),
    [
        (None, None),
        (["10.0.0.1:8000", " 10.0.0.2 "], ("10.0.0.1:8000", "10.0.0.2")),
        ("10.0.0.1:8000, [fd00::1]:8000", ("10.0.0.1:8000", "[fd00::1]:8000")),
        (["a:1,b:2", ""], ("a:1", "b:2")),
        (["a:1", 5, None, {"x": "y"}], ("a:1",)),
        ([], ()),
        ("", ()),
        (7, None),
    ],
)
def test_a_subset_hint_is_a_list_or_a_text_with_commas(hint: object, subset: tuple[str, ...] | None) -> None:
    proxy = Proxy()
    proxy.say(headers(end=True, hint=hint))
    assert proxy.ready.head.subset == subset


@pytest.mark.parametrize(("later", "subset"), [(None, ("a:1",)), (["b:1"], ("b:1",))])
def test_a_subset_hint_stays_until_a_later_one(later: object, subset: tuple[str, ...]) -> None:
    proxy = Proxy()
    proxy.say(headers(modes=FULL_DUPLEX, hint=["a:1"]))
    other = body(b"x")
    other.metadata_context.filter_metadata["something.else"].update({"x": "y"})
    proxy.say(other)
    proxy.say(body(b"y", end=True, hint=later))
    assert proxy.ready.head.subset == subset


# -- bodies that change


def test_a_buffered_body_is_replaced_when_the_model_changes() -> None:
    proxy = Proxy(lambda _: Route(destinations=("a:1",), target_model="other"))
    proxy.say(headers(modes=LEAN))
    (answer,) = proxy.say(body(JSON, end=True))
    assert answer.replaced == b'{"model":"other","prompt":"hi"}'
    assert answer.set_headers["content-length"] == "31"


def test_a_model_for_a_body_without_one_is_the_callers_error() -> None:
    proxy = Proxy(lambda _: None)
    proxy.say(headers(modes=LEAN))
    proxy.say(body(b"no json", end=True))
    with pytest.raises(ValueError, match="no model to replace by 'other'"):
        proxy.answer(Route(destinations=("a:1",), target_model="other"))
    proxy.answer(Refusal(status=500, message="then this"))
    assert [str(answer) for answer in proxy.hear()] == ["immediate_response 500"]


# -- decisions that come later


def test_a_decision_may_come_after_its_message() -> None:
    proxy = Proxy(lambda _: None)
    proxy.say(headers(modes=FULL_DUPLEX))
    assert proxy.say(body(b"ab", end=True)) == []
    proxy.answer(ROUTE)
    assert [str(answer) for answer in proxy.hear()] == ["request_headers to 10.0.0.1:8000", "request_body echo 2 end"]


def test_chunks_and_trailers_that_come_before_the_decision_are_answered_after_it() -> None:
    proxy = Proxy(lambda _: None)
    for message in (headers(modes=modes(BodyMode.STREAMED)), body(b"a"), body(b"b", end=True), trailers()):
        assert proxy.say(message) == []
    proxy.answer(ROUTE)
    assert [str(answer) for answer in proxy.hear()] == [
        "request_headers to 10.0.0.1:8000",
        "request_body",
        "request_body",
        "request_trailers",
    ]


@pytest.mark.parametrize("decision", [ROUTE, Refusal(status=429, message="late")])
def test_a_decision_after_the_end_of_the_stream_does_nothing(decision: Route | Refusal) -> None:
    proxy = Proxy(lambda _: None)
    proxy.say(headers(end=True))
    assert proxy.hang_up() == Completed(aborted=True)
    proxy.answer(decision)
    assert proxy.hear() == []


def test_a_decision_without_a_request_is_the_callers_error() -> None:
    proxy = Proxy()
    with pytest.raises(RuntimeError, match="no request waits for an answer: <Conversation idle"):
        proxy.answer(ROUTE)
    proxy.say(headers(end=True))
    with pytest.raises(RuntimeError, match="<Conversation routed"):
        proxy.answer(Refusal(status=429, message="a second answer"))


def test_a_route_needs_a_destination() -> None:
    proxy = Proxy(lambda _: None)
    proxy.say(headers(end=True))
    with pytest.raises(ValueError, match="needs a destination"):
        proxy.answer(Route(destinations=()))


# -- responses


@pytest.mark.parametrize(
    ("served_header", "served"),
    [
        ("10.0.0.1:8000", "10.0.0.1:8000"),
        ("[fd00::1]:8000", "[fd00::1]:8000"),
        ("fd00::1:8000", "[fd00::1]:8000"),
        ("", None),
        ("/var/run/socket", "/var/run/socket"),
        ("fd00::1:" + "9" * 5000, "fd00::1:" + "9" * 248),
    ],
)
def test_the_response_tells_who_served(served_header: str, served: str | None) -> None:
    proxy = Proxy()
    proxy.say(headers(end=True))
    proxy.say(response_headers(503, served=served_header))
    assert proxy.events[-1] == ResponseStarted(503, served)


def test_who_served_may_come_as_metadata() -> None:
    message = response_headers()
    message.metadata_context.filter_metadata["envoy.lb"].update(
        {"x-gateway-destination-endpoint-served": "10.0.0.2:8000"}
    )
    proxy = Proxy()
    proxy.say(message)
    assert proxy.events[-1] == ResponseStarted(200, "10.0.0.2:8000")


@pytest.mark.parametrize("text", ["", "abc", "1e2", "20", "²²²"])
def test_a_status_that_is_no_number_is_none(text: str) -> None:
    proxy = Proxy()
    proxy.say(headers({":status": text}, phase="response_headers"))
    assert proxy.events[-1] == ResponseStarted(None, None)


@pytest.mark.parametrize(
    ("way", "heard", "aborted"),
    [
        (LEAN, [], True),
        (LEAN, [response_headers()], False),
        (FULL_DUPLEX, [response_headers()], True),
        (FULL_DUPLEX, [response_headers(), response_body(b"x")], True),
    ],
    ids=["before the response", "lean: looks complete", "bodies: no end seen", "in the middle of a body"],
)
def test_a_stream_that_ends_early_completes_as_what_it_looks_like(
    way: tuple[BodyMode, BodyMode], heard: list[object], aborted: bool
) -> None:
    proxy = Proxy()
    proxy.say(headers(end=True, modes=way))
    for message in heard:
        proxy.say(message)
    assert proxy.hang_up() == Completed(aborted)
    assert proxy.hang_up() is None


# -- limits


def test_a_body_at_the_limit_is_taken_and_one_byte_more_is_refused() -> None:
    for size, phases in ((10, ["request_headers", "request_body"]), (11, ["immediate_response"])):
        proxy = Proxy(limits=Limits(request_body=10))
        proxy.say(headers(modes=FULL_DUPLEX))
        answers = proxy.say(body(b"x" * 5)) + proxy.say(body(b"x" * (size - 5), end=True))
        assert [answer.phase for answer in answers] == phases


@pytest.mark.parametrize(
    ("length", "request_mode", "answers"),
    [
        ("11", BodyMode.FULL_DUPLEX_STREAMED, ["immediate_response 413"]),
        ("11", BodyMode.BUFFERED, ["immediate_response 413"]),
        ("9" * 26, BodyMode.BUFFERED, ["immediate_response 413"]),
        # one that is no number is the server's business, and a body that the proxy keeps has no limit
        *((length, BodyMode.BUFFERED, ["request_headers"]) for length in ("", "-1", "x", "²")),
        ("1000", BodyMode.NONE, ["request_headers to 10.0.0.1:8000"]),
    ],
)
def test_a_length_beyond_the_limit_is_refused_before_the_body_comes(
    length: str, request_mode: BodyMode, answers: list[str]
) -> None:
    proxy = Proxy(limits=Limits(request_body=10))
    assert [
        str(answer) for answer in proxy.say(headers({"content-length": length}, modes=modes(request_mode)))
    ] == answers
    assert any(isinstance(event, RequestReady) for event in proxy.events) is (request_mode is BodyMode.NONE)
