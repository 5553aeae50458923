"""The response half: what is shown to a reader, and how a body goes back that isn't the one that came."""

import pytest

from services.picker.extproc.events import Completed, ResponseBodyStarted
from services.picker.extproc.messages import BodyMode
from services.picker.extproc.response import PIECE, WHOLE
from services.picker.responses.reader import LIMIT, ResponseReader
from services.picker.responses.usage import Usage
from tests.unit.services.picker.extproc.proxy import (
    FULL_DUPLEX,
    LEAN,
    Answer,
    Proxy,
    body,
    headers,
    response_body,
    response_trailers,
)

JSON = b'{"model":"tuned","usage":{"prompt_tokens":3,"completion_tokens":2}}'
RESTORED = JSON.replace(b"tuned", b"a name that is longer")
EVENT = b'data: {"model":"tuned","choices":[]}\n\n'
EVENT_RESTORED = EVENT.replace(b"tuned", b"a name that is longer")


def renaming() -> ResponseReader:
    return ResponseReader("tuned", "a name that is longer")


def routed(modes: tuple[BodyMode, BodyMode], reader: ResponseReader | None, *, observe: bool = False) -> Proxy:
    proxy = Proxy(reader=reader, observe=observe)
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
    assert all(one.streamed is not None for one in answers)
    return b"".join(one.streamed or b"" for one in answers)


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


def test_a_large_changed_response_comes_in_pieces() -> None:
    text = b'{"model":"tuned","x":"' + b"y" * 150_000 + b'"}'
    proxy = routed(FULL_DUPLEX, renaming())
    begin(proxy)
    answers = proxy.say(response_body(text, end=True))
    assert [one.end for one in answers] == [False, False, True]
    assert max(len(one.streamed or b"") for one in answers) == PIECE
    assert streamed(answers) == text.replace(b"tuned", b"a name that is longer")


def test_what_was_held_of_a_response_that_grows_too_large_comes_in_pieces() -> None:
    proxy = routed(FULL_DUPLEX, ResponseReader("tuned", "x", limit=200_000))
    begin(proxy)
    sent = [b'{"model":"tuned"', *[b"," * 60_000] * 4]
    received = [answer for piece in sent for answer in proxy.say(response_body(piece))]
    assert streamed(received) == b"".join(sent)
    assert max(len(one.streamed or b"") for one in received) <= PIECE
    assert not any(one.end for one in received)


def test_trailers_end_a_response_that_is_held() -> None:
    proxy = routed(FULL_DUPLEX, renaming())
    begin(proxy, "text/event-stream")
    assert proxy.say(response_body(EVENT.rstrip())) == []
    held, trailers = proxy.say(response_trailers())
    assert (held.phase, held.streamed, held.end) == ("response_body", EVENT_RESTORED.rstrip(), False)
    assert trailers.phase == "response_trailers"
    assert proxy.events[-1] == Completed(aborted=False)


@pytest.mark.parametrize("ends", ["headers", "trailers"])
def test_a_body_after_the_end_of_its_response_is_answered_and_a_stream_that_has_ended_relays_nothing(ends: str) -> None:
    proxy = routed(FULL_DUPLEX, None)
    begin(proxy, end=ends == "headers")
    if ends == "trailers":
        proxy.say(response_trailers())
    assert proxy.events[-1] == Completed(aborted=False)
    events = list(proxy.events)
    assert [streamed(proxy.say(response_body(b"late"))) for _ in range(2)] == [b"late", b"late"]
    assert proxy.relayed == 0
    proxy.hang_up()
    assert proxy.say(response_body(b"later")) == []
    assert proxy.events == events


def test_a_proxy_that_keeps_responses_is_asked_for_a_whole_one_that_must_change() -> None:
    proxy = routed(LEAN, renaming())
    answer = begin(proxy, length=len(JSON))
    assert answer.asked is BodyMode.BUFFERED
    assert answer.remove_headers == ()
    (answer,) = proxy.say(response_body(JSON, end=True))
    assert answer.replaced == RESTORED
    assert answer.set_headers == {"content-length": str(len(RESTORED))}
    assert proxy.events[-1] == Completed(aborted=False)


def test_a_proxy_that_keeps_responses_is_asked_for_an_event_stream_that_must_change() -> None:
    proxy = routed(LEAN, renaming())
    answer = begin(proxy, "text/event-stream")
    assert answer.asked is BodyMode.STREAMED
    assert answer.remove_headers == ("content-length",)
    (answer,) = proxy.say(response_body(EVENT))
    assert answer.replaced == EVENT_RESTORED
    (answer,) = proxy.say(response_body(EVENT[:5]))
    assert answer.replaced is None
    (answer,) = proxy.say(response_body(EVENT[5:], end=True))
    assert answer.replaced == EVENT_RESTORED[5:]
    assert proxy.events[-1] == Completed(aborted=False)


def got(proxy: Proxy, pieces: list[bytes], *, trailers: bool) -> bytes:
    """What the client gets of these pieces where each is answered once (STREAMED)."""
    taken = []
    for index, piece in enumerate(pieces):
        (answer,) = proxy.say(response_body(piece, end=not trailers and index == len(pieces) - 1))
        taken.append(piece if answer.replaced is None else answer.replaced)
    if trailers:
        assert [one.phase for one in proxy.say(response_trailers())] == ["response_trailers"]
    assert proxy.events[-1] == Completed(aborted=False)
    return b"".join(taken)


def test_a_streamed_response_that_breaks_off_in_its_models_name_lacks_no_more_than_that() -> None:
    text = b'{"id":"c1","model":"tun'
    proxy = routed(LEAN, renaming())
    begin(proxy)
    assert got(proxy, [text[:9], text[9:]], trailers=True) == b'{"id":"c1","model":'
    proxy = routed(LEAN, renaming())
    begin(proxy)
    assert got(proxy, [text[:9], text[9:]], trailers=False) == text


def test_usage_is_read_when_trailers_end_a_response_that_isnt_changed() -> None:
    for mode in (BodyMode.STREAMED, BodyMode.FULL_DUPLEX_STREAMED):
        reader = ResponseReader()
        proxy = routed((BodyMode.BUFFERED, mode), reader)
        begin(proxy)
        proxy.say(response_body(JSON[:9]))
        proxy.say(response_body(JSON[9:]))
        assert [one.phase for one in proxy.say(response_trailers())] == ["response_trailers"]
        assert reader.usage == Usage(3, 2, None)


@pytest.mark.parametrize(
    ("length", "asked"),
    [
        (WHOLE, BodyMode.BUFFERED),
        (WHOLE + 1, BodyMode.STREAMED),
        (LIMIT, BodyMode.STREAMED),
        (LIMIT + 1, None),
    ],
)
def test_a_response_is_asked_for_whole_only_where_any_proxy_can_hold_it(length: int, asked: BodyMode | None) -> None:
    proxy = routed(LEAN, renaming())
    answer = begin(proxy, length=length)
    assert answer.asked is asked
    assert answer.remove_headers == (("content-length",) if asked is BodyMode.STREAMED else ())
    assert proxy.hang_up() == Completed(aborted=False)


def test_a_response_that_was_shown_whole_is_complete_though_trailers_may_follow() -> None:
    proxy = routed((BodyMode.BUFFERED, BodyMode.BUFFERED), None)
    begin(proxy)
    proxy.say(response_body(JSON))
    assert proxy.hang_up() == Completed(aborted=False)


def test_a_proxy_that_keeps_responses_isnt_asked_for_one_that_is_only_read() -> None:
    proxy = routed(LEAN, ResponseReader())
    assert begin(proxy, length=5).asked is None


def test_a_grpc_response_to_a_rewritten_request_is_only_read_so_it_isnt_asked_for_either() -> None:
    """The model's name isn't put back in gRPC messages."""
    reader = ResponseReader("tuned", "m", api="generate")
    assert begin(routed(LEAN, reader), "application/grpc").asked is None


@pytest.mark.parametrize("length", [None, 5, LIMIT])
def test_a_response_that_is_observed_is_asked_for_as_a_stream_and_keeps_its_length(length: int | None) -> None:
    """So neither its head nor its pieces wait for its end."""
    reader = ResponseReader()
    proxy = routed(LEAN, reader, observe=True)
    answer = begin(proxy, length=length)
    assert (answer.asked, answer.remove_headers) == (BodyMode.STREAMED, ())
    assert got(proxy, [JSON[:9], JSON[9:]], trailers=False) == JSON
    assert proxy.conversation.observed
    assert reader.usage == Usage(3, 2, None)


@pytest.mark.parametrize(
    "response",
    [
        {":status": "503"},
        {"content-encoding": "gzip"},
        {"content-type": "text/plain"},
        {"content-length": str(LIMIT + 1)},
        {"content-length": "unknown"},
    ],
)
def test_a_response_that_tells_of_no_tokens_isnt_asked_for_to_be_observed(response: dict[str, str]) -> None:
    proxy = routed(LEAN, ResponseReader(), observe=True)
    values = {":status": "200", "content-type": "application/json", **response}
    (answer,) = proxy.say(headers(values, phase="response_headers"))
    assert answer.asked is None
    proxy.hang_up()
    assert not proxy.conversation.observed
    assert proxy.events[-1] == Completed(aborted=False)


def test_pieces_of_a_response_that_is_observed_are_answered_without_being_decoded() -> None:
    reader = ResponseReader()
    proxy = routed(LEAN, reader, observe=True)
    begin(proxy, "text/event-stream")
    usage = b'data: {"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
    assert got(proxy, [EVENT, EVENT, EVENT[:9], EVENT[9:], usage, b""], trailers=False) == EVENT * 3 + usage
    assert proxy.relayed == 4
    assert (reader.usage, proxy.conversation.received) == (Usage(3, 2, None), 3 * len(EVENT) + len(usage))


def test_a_proxy_that_doesnt_follow_the_request_for_bodies_has_complete_responses_all_the_same() -> None:
    proxy = routed(LEAN, renaming())
    begin(proxy, "text/event-stream")
    assert proxy.hang_up() == Completed(aborted=False)


def test_a_response_that_was_asked_for_and_breaks_off_is_aborted() -> None:
    proxy = routed(LEAN, renaming())
    begin(proxy, "text/event-stream")
    proxy.say(response_body(EVENT))
    assert proxy.hang_up() == Completed(aborted=True)


def test_a_response_without_a_body_isnt_waited_for() -> None:
    proxy = routed(LEAN, renaming())
    assert begin(proxy, end=True).asked is None
    assert proxy.events[-1] == Completed(aborted=False)
