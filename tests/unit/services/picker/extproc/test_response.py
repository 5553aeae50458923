"""The response half: what is shown to a reader, and how a body goes back that isn't the one that came."""

from collections.abc import Callable

import pytest
from msgspec import structs

from services.picker.extproc.conversation import Conversation
from services.picker.extproc.events import Completed, Limits, ResponseBodyStarted, ResponseStarted
from services.picker.extproc.messages import BodyMode
from services.picker.extproc.outgoing import PIECE
from services.picker.extproc.response import WHOLE
from services.picker.request import Refusal
from services.picker.responses.reader import LIMIT, ResponseReader
from services.picker.responses.usage import Usage
from tests.unit.services.picker.extproc.proxy import (
    FULL_DUPLEX,
    LEAN,
    ROUTE,
    Answer,
    Proxy,
    body,
    headers,
    read,
    response_body,
    response_trailers,
)

JSON = b'{"model":"tuned","usage":{"prompt_tokens":3,"completion_tokens":2}}'
RESTORED = JSON.replace(b"tuned", b"a name that is longer")
EVENT = b'data: {"model":"tuned","choices":[]}\n\n'
EVENT_RESTORED = EVENT.replace(b"tuned", b"a name that is longer")


def renaming() -> ResponseReader:
    return ResponseReader("tuned", "a name that is longer")


def routed(
    modes: tuple[BodyMode, BodyMode],
    reader: ResponseReader | None,
    *,
    observe: bool = False,
    limits: Limits | None = None,
) -> Proxy:
    proxy = Proxy(reader=reader, observe=observe, limits=limits)
    proxy.say(headers({":path": "/v1/completions", ":method": "POST"}, modes=modes))
    proxy.say(body(b"{}", end=True))
    return proxy


def begin(proxy: Proxy, kind: str = "application/json", length: int | None = None, *, end: bool = False) -> Answer:
    values = {":status": "200", "content-type": kind}
    if length is not None:
        values["content-length"] = str(length)
    (answer,) = proxy.say(headers(values, phase="response_headers", end=end))
    return answer


def streamed(answers: list[Answer]) -> bytes:
    assert all(answer.streamed is not None for answer in answers)
    return b"".join(answer.streamed or b"" for answer in answers)


def test_pieces_in_the_middle_of_a_response_go_back_without_being_decoded() -> None:
    proxy = routed(FULL_DUPLEX, None)
    begin(proxy, "text/event-stream")
    sent = [b"first", b"second", b"third"]
    assert [streamed(proxy.say(response_body(piece))) for piece in sent] == sent
    assert proxy.relayed == 2
    (last,) = proxy.say(response_body(b"last", end=True))
    assert (last.streamed, last.end) == (b"last", True)
    assert sum(isinstance(event, ResponseBodyStarted) for event in proxy.events) == 1
    assert proxy.events[-1] == Completed(aborted=False)


def test_nothing_is_relayed_after_the_end_nor_before_the_headers() -> None:
    proxy = routed(FULL_DUPLEX, None)
    proxy.say(response_body(b"before"))
    proxy.say(response_body(b"any headers"))
    assert proxy.relayed == 0
    proxy = routed(FULL_DUPLEX, None)
    begin(proxy)
    for end in (False, True, False):
        proxy.say(response_body(b"x", end=end))
    assert proxy.relayed == 0


@pytest.mark.parametrize("ends", ["headers", "trailers"])
def test_a_body_after_the_end_of_its_response_is_answered_and_a_stream_that_has_ended_relays_nothing(ends: str) -> None:
    proxy = routed(FULL_DUPLEX, None)
    begin(proxy, end=ends == "headers")
    if ends == "trailers":
        proxy.say(response_trailers())
    events = list(proxy.events)
    assert events[-1] == Completed(aborted=False)
    assert [streamed(proxy.say(response_body(b"late"))) for _ in range(2)] == [b"late", b"late"]
    proxy.hang_up()
    assert proxy.say(response_body(b"later")) == []
    assert (proxy.events, proxy.relayed) == (events, 0)


# -- what is asked for

PLAIN = {":status": "200", "content-type": "application/json"}
EVENTS = PLAIN | {"content-type": "text/event-stream"}


def sized(length: int) -> dict[str, str]:
    return PLAIN | {"content-length": str(length)}


@pytest.mark.parametrize(
    ("kind", "values", "asked", "removed"),
    [
        ("renames", sized(len(JSON)), BodyMode.BUFFERED, ()),
        ("renames", sized(WHOLE), BodyMode.BUFFERED, ()),
        ("renames", sized(WHOLE + 1), BodyMode.STREAMED, ("content-length",)),
        ("renames", sized(LIMIT), BodyMode.STREAMED, ("content-length",)),
        ("renames", sized(LIMIT + 1), None, ()),
        ("renames", EVENTS, BodyMode.STREAMED, ("content-length",)),
        ("reads", sized(5), None, ()),
        # the model's name isn't put back in gRPC messages
        ("grpc", PLAIN | {"content-type": "application/grpc"}, None, ()),
        # as a stream with its length, so that neither head nor pieces wait for its end
        ("observes", PLAIN, BodyMode.STREAMED, ()),
        ("observes", sized(5), BodyMode.STREAMED, ()),
        ("observes", sized(LIMIT), BodyMode.STREAMED, ()),
        ("observes", PLAIN | {":status": "503"}, None, ()),
        ("observes", PLAIN | {"content-encoding": "gzip"}, None, ()),
        ("observes", PLAIN | {"content-type": "text/plain"}, None, ()),
        ("observes", PLAIN | {"content-length": str(LIMIT + 1)}, None, ()),
        ("observes", PLAIN | {"content-length": "unknown"}, None, ()),
    ],
)
def test_a_proxy_that_keeps_responses_is_asked_for_those_that_somebody_has_to_see(
    kind: str, values: dict[str, str], asked: BodyMode | None, removed: tuple[str, ...]
) -> None:
    """It needn't follow: the response is complete all the same."""
    readers = {"renames": renaming(), "grpc": ResponseReader("tuned", "m", api="generate")}
    proxy = routed(LEAN, readers.get(kind, ResponseReader()), observe=kind == "observes")
    (answer,) = proxy.say(headers(values, phase="response_headers"))
    assert (answer.asked, answer.remove_headers) == (asked, removed)
    assert proxy.hang_up() == Completed(aborted=False)
    assert not proxy.conversation.response.observed


@pytest.mark.parametrize("limit", [1000, 10])
@pytest.mark.parametrize(("more", "read"), [(0, True), (1, False)])
def test_a_response_with_too_many_headers_passes_unread(limit: int, more: int, *, read: bool) -> None:
    proxy = routed(FULL_DUPLEX, renaming(), limits=Limits(header_count=limit))
    shown = [(":status", "200"), ("content-type", "application/json"), *[("a", "b")] * (limit - 2 + more)]
    (answer,) = proxy.say(headers(shown, phase="response_headers"))
    assert answer.remove_headers == (("content-length",) if read else ())


def test_a_response_without_a_body_isnt_waited_for() -> None:
    proxy = routed(LEAN, renaming())
    assert begin(proxy, end=True).asked is None
    assert proxy.events[-1] == Completed(aborted=False)


def test_a_response_that_was_asked_for_and_breaks_off_is_aborted() -> None:
    proxy = routed(LEAN, renaming())
    begin(proxy, "text/event-stream")
    proxy.say(response_body(EVENT))
    assert proxy.hang_up() == Completed(aborted=True)


# -- what goes back


def got(proxy: Proxy, pieces: list[bytes], *, trailers: bool = False) -> bytes:
    """What the client gets of these pieces where each is answered once (STREAMED)."""
    taken = []
    for index, piece in enumerate(pieces):
        (answer,) = proxy.say(response_body(piece, end=not trailers and index == len(pieces) - 1))
        taken.append(piece if answer.replaced is None else answer.replaced)
    if trailers:
        assert [answer.phase for answer in proxy.say(response_trailers())] == ["response_trailers"]
    assert proxy.events[-1] == Completed(aborted=False)
    return b"".join(taken)


def test_a_changed_response_loses_its_length_and_comes_as_a_stream_of_its_own() -> None:
    reader = renaming()
    proxy = routed(FULL_DUPLEX, reader)
    assert begin(proxy, length=len(JSON)).remove_headers == ("content-length",)
    assert proxy.say(response_body(JSON[:20])) == []
    assert proxy.say(response_body(JSON[20:40])) == []
    (answer,) = proxy.say(response_body(JSON[40:], end=True))
    assert (answer.streamed, answer.end) == (RESTORED, True)
    assert reader.usage == Usage(3, 2, None)


def test_events_are_changed_and_relayed_one_by_one() -> None:
    proxy = routed(FULL_DUPLEX, renaming())
    begin(proxy, "text/event-stream")
    for _ in range(3):
        assert streamed(proxy.say(response_body(EVENT))) == EVENT_RESTORED
    assert proxy.say(response_body(EVENT[:9])) == []
    assert streamed(proxy.say(response_body(EVENT[9:]))) == EVENT_RESTORED
    assert proxy.relayed == 4
    (last,) = proxy.say(response_body(b"", end=True))
    assert (last.streamed, last.end) == (b"", True)


@pytest.mark.parametrize(("size", "pieces"), [(2 * PIECE, 2), (2 * PIECE + 1, 3)])
def test_a_large_changed_response_comes_in_pieces(size: int, pieces: int) -> None:
    """`size`: with the client's name."""
    text = b'{"model":"tuned","x":"%s"}'
    restored = text.replace(b"tuned", b"a name that is longer")
    filler = b"y" * (size - len(restored % b""))
    proxy = routed(FULL_DUPLEX, renaming())
    begin(proxy)
    answers = proxy.say(response_body(text % filler, end=True))
    assert [answer.end for answer in answers] == [False] * (pieces - 1) + [True]
    assert max(len(answer.streamed or b"") for answer in answers) == PIECE
    assert streamed(answers) == restored % filler


def test_what_was_held_of_a_response_that_grows_too_large_comes_in_pieces() -> None:
    proxy = routed(FULL_DUPLEX, ResponseReader("tuned", "x", limit=200_000))
    begin(proxy)
    sent = [b'{"model":"tuned"', *[b"," * 60_000] * 4]
    received = [answer for piece in sent for answer in proxy.say(response_body(piece))]
    assert streamed(received) == b"".join(sent)
    assert max(len(answer.streamed or b"") for answer in received) <= PIECE
    assert not any(answer.end for answer in received)


def test_trailers_end_a_response_that_is_held() -> None:
    proxy = routed(FULL_DUPLEX, renaming())
    begin(proxy, "text/event-stream")
    assert proxy.say(response_body(EVENT.rstrip())) == []
    held, trailers = proxy.say(response_trailers())
    assert (held.phase, held.streamed, held.end) == ("response_body", EVENT_RESTORED.rstrip(), False)
    assert trailers.phase == "response_trailers"
    assert proxy.events[-1] == Completed(aborted=False)


def test_a_whole_response_is_replaced_with_its_length() -> None:
    proxy = routed(LEAN, renaming())
    begin(proxy, length=len(JSON))
    (answer,) = proxy.say(response_body(JSON, end=True))
    assert (answer.replaced, answer.set_headers) == (RESTORED, {"content-length": str(len(RESTORED))})
    assert proxy.events[-1] == Completed(aborted=False)


@pytest.mark.parametrize(
    ("kind", "pieces", "trailers", "expected"),
    [
        ("text/event-stream", [EVENT, EVENT[:5], EVENT[5:]], False, 2 * EVENT_RESTORED),
        # one that breaks off in its model's name lacks no more than that
        ("application/json", [b'{"id":"c1","m', b'odel":"tun'], True, b'{"id":"c1","model":'),
        ("application/json", [b'{"id":"c1","m', b'odel":"tun'], False, b'{"id":"c1","model":"tun'),
    ],
)
def test_a_streamed_response_is_replaced_piece_by_piece(
    kind: str, pieces: list[bytes], trailers: bool, expected: bytes
) -> None:
    proxy = routed(LEAN, renaming())
    begin(proxy, kind)
    assert got(proxy, pieces, trailers=trailers) == expected


@pytest.mark.parametrize("mode", [BodyMode.STREAMED, BodyMode.FULL_DUPLEX_STREAMED])
def test_usage_is_read_when_trailers_end_a_response_that_isnt_changed(mode: BodyMode) -> None:
    reader = ResponseReader()
    proxy = routed((BodyMode.BUFFERED, mode), reader)
    begin(proxy)
    assert got(proxy, [JSON[:9], JSON[9:]], trailers=True) == JSON
    assert reader.usage == Usage(3, 2, None)


def test_a_response_that_was_shown_whole_is_complete_though_trailers_may_follow() -> None:
    proxy = routed((BodyMode.BUFFERED, BodyMode.BUFFERED), None)
    begin(proxy)
    proxy.say(response_body(JSON))
    assert proxy.hang_up() == Completed(aborted=False)


def test_pieces_of_a_response_that_is_observed_are_answered_without_being_decoded() -> None:
    reader = ResponseReader()
    proxy = routed(LEAN, reader, observe=True)
    begin(proxy, "text/event-stream")
    usage = b'data: {"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
    assert got(proxy, [EVENT, EVENT, EVENT[:9], EVENT[9:], usage, b""]) == EVENT * 3 + usage
    assert (proxy.relayed, proxy.conversation.response.observed) == (4, True)
    assert (reader.usage, proxy.conversation.response.received) == (Usage(3, 2, None), 3 * len(EVENT) + len(usage))


@pytest.mark.parametrize("end", [False, True], ids=["with a body", "without"])
@pytest.mark.parametrize("response", list(BodyMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("make", [lambda: None, renaming], ids=["passes", "changes"])
def test_headers_for_the_client_go_with_the_answer_to_the_response_headers(
    response: BodyMode, make: Callable[[], ResponseReader | None], end: bool
) -> None:
    """The rest of the answer stays: what it asks for, and the length that it removes."""
    modes = (BodyMode.BUFFERED, response)
    plain = begin(routed(modes, make()), length=50, end=end)
    conversation = routed(modes, make()).conversation
    shown = {":status": "200", "content-type": "application/json", "content-length": "50"}
    conversation.receive(headers(shown, phase="response_headers", end=end).SerializeToString(), 2.0)
    conversation.set_response_headers({"x-session-token": "a1", "x-two": "2"})
    (answer,) = map(read, conversation.responses())
    assert answer == structs.replace(plain, set_headers={"x-session-token": "a1", "x-two": "2"})
    with pytest.raises(RuntimeError, match="have been answered"):
        conversation.set_response_headers({"x-late": "1"})


def test_an_evicted_request_gets_no_headers_beside_its_refusal() -> None:
    conversation = routed(LEAN, None).conversation
    conversation.receive(headers({":status": "200"}, phase="response_headers").SerializeToString(), 2.0)
    conversation.evict(Refusal(status=429, message="evicted"))
    conversation.set_response_headers({"x-late": "1"})
    (answer,) = map(read, conversation.responses())
    assert (answer.status, "x-late" in answer.set_headers) == (429, False)


@pytest.mark.parametrize(("requested", "names"), [(True, [":status", "server"]), (False, [])])
def test_response_headers_are_told_if_asked_for(requested: bool, names: list[str]) -> None:
    conversation = Conversation(Limits(), lambda: "made-id")
    conversation.receive(headers({":path": "/v1/models"}, modes=LEAN, end=True).SerializeToString(), 1.0)
    conversation.route(ROUTE, report_headers=requested)
    shown = headers({":status": "200", "server": "vllm"}, phase="response_headers")
    (event,) = conversation.receive(shown.SerializeToString(), 2.0)
    assert isinstance(event, ResponseStarted)
    assert list(event.headers.names()) == names
