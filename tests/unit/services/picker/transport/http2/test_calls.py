"""gRPC's side of a stream: what a call hears and says, how it ends, and that it ends once, whatever fails."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.picker.body_buffer import MemoryBudget
from services.picker.transport.calls import StatusCode
from services.picker.transport.http2.errors import ConnectionFailed, ErrorCode
from tests.unit.services.picker.transport.http2.peer import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    OPTIONS,
    PING,
    RST_STREAM,
    Peer,
    data,
    frame,
    headers,
    message,
    request,
    reset,
)

END = END_HEADERS | END_STREAM


def test_a_call_echoes_messages_and_ends_with_a_status() -> None:
    peer = Peer()
    heard = peer.say(headers(1), data(1, message(b"a") + message(b"")), data(1, message(b"b"), END_STREAM))
    assert [(received.kind, received.flags) for received in heard] == [
        (HEADERS, END_HEADERS),
        *[(DATA, 0)] * 3,
        (HEADERS, END_HEADERS | END_STREAM),
    ]
    assert peer.decode(heard[0]) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-accept-encoding": "identity,gzip",
    }
    assert peer.data() == message(b"a") + message(b"") + message(b"b")
    assert peer.decode(heard[-1]) == {"grpc-status": "0"}


REQUESTS: dict[str, tuple[dict[str, str | None], StatusCode]] = {
    "grpc": ({}, StatusCode.OK),
    "grpc with a format": ({"content_type": "application/grpc+proto"}, StatusCode.OK),
    "grpc with a parameter": ({"content_type": "application/grpc;charset=utf-8"}, StatusCode.OK),
    "identity": ({"grpc_encoding": "identity"}, StatusCode.OK),
    "an unknown method": ({"path": "/test.Test/Nothing"}, StatusCode.UNIMPLEMENTED),
    "an unknown compression": ({"grpc_encoding": "br"}, StatusCode.UNIMPLEMENTED),
    "a deadline without a unit": ({"grpc_timeout": "10"}, StatusCode.INTERNAL),
    "a deadline of nine digits": ({"grpc_timeout": "123456789S"}, StatusCode.INTERNAL),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_served_or_ends_with_a_status(name: str) -> None:
    changes, status = REQUESTS[name]
    peer = Peer()
    peer.say(headers(1, END, request(**changes)))
    assert peer.status()[0] is status
    assert [(call.half_closed, call.ends) for call in peer.calls] == ([(1, 1)] if status is StatusCode.OK else [])
    assert (peer.connection.open, peer.resets()) == (0, {})


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"method": "GET"}, "405"),
        ({"content_type": "application/json"}, "415"),
        ({"content_type": None}, "415"),
        ({"content_type": "application/grpcx"}, "415"),
    ],
)
def test_a_request_that_isnt_grpc_gets_an_http_status_and_a_sentence(changes: dict[str, Any], status: str) -> None:
    for last in (headers(1, END, request(**changes)), headers(1, END_HEADERS, request(**changes)) + data(1, b"x", 1)):
        peer = Peer()
        heard = peer.say(last)
        assert peer.decode(heard[0]) == {":status": status, "content-type": "text/plain", "allow": "POST"}
        assert b"this port serves gRPC" in peer.data()
        assert (heard[-1].flags & END_STREAM, peer.connection.open, peer.calls) == (END_STREAM, 0, [])
    narrow = Peer(sets={4: 1})
    heard = narrow.say(headers(1, END, request(**changes)))
    assert [(received.kind, received.flags, len(received.payload)) for received in heard[1:]] == [(DATA, 0, 1)]
    (rest,) = narrow.say(frame(8, 0, 1, (1000).to_bytes(4, "big")))
    assert (rest.flags, narrow.data(), narrow.connection.open) == (END_STREAM, peer.data(), 0)


def test_a_status_message_is_percent_encoded_and_cut() -> None:
    peer = Peer()
    for stream, details in enumerate(("50 % · ✓\n", "x" * 5000)):
        call = peer.call("Silent", 2 * stream + 1)
        call.stream.finish(StatusCode.UNAVAILABLE, details)
    peer.hear()
    assert peer.status(1) == (StatusCode.UNAVAILABLE, "50 %25 %C2%B7 %E2%9C%93%0A")
    assert peer.status(3) == (StatusCode.UNAVAILABLE, "x" * 1024)


def test_a_status_before_the_clients_end_stops_the_client() -> None:
    """RFC 9113, section 8.1."""
    peer = Peer()
    peer.call("Silent").stream.finish()
    heard = peer.hear()
    assert [(received.kind, received.flags) for received in heard[-2:]] == [(HEADERS, END), (RST_STREAM, 0)]
    assert peer.resets() == {1: ErrorCode.NO_ERROR}


def test_messages_and_a_status_may_come_at_any_time_and_wake_the_writer() -> None:
    peer = Peer()
    call = peer.call("Silent")
    assert peer.wakes == 0
    call.stream.send(b"later")
    call.stream.finish()
    call.stream.send(b"too late")
    call.stream.finish(StatusCode.INTERNAL)
    assert peer.wakes > 0
    peer.hear()
    assert (peer.data(), peer.status(), call.ends) == (message(b"later"), (StatusCode.OK, ""), 1)


def test_a_call_that_finishes_while_it_begins_is_ended_once() -> None:
    calls = []

    def begin(stream: Any, metadata: Any) -> Any:
        stream.send(b"at once")
        stream.finish(StatusCode.UNAVAILABLE, "not now")
        calls.append(Peer(methods={}).call)
        return ended

    class Ended:
        ends = 0

        def end(self) -> None:
            self.ends += 1

    ended = Ended()
    peer = Peer(methods={"/test.Test/Echo": begin})
    peer.say(headers(1), data(1, message(b"x")))
    assert (peer.data(), peer.status()[0], ended.ends) == (message(b"at once"), StatusCode.UNAVAILABLE, 1)


ENDS = {
    "the client's end": data(1, b"", END_STREAM),
    "a cut message": data(1, message(b"abc")[:6], END_STREAM),
    "the client's reset": reset(1),
    "a stream error": headers(1, END_HEADERS, [("x", "y")]),
    "a connection error": frame(PING, 0, 1),
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("part", [0, 3, 5, 6, 1000])
def test_whatever_ends_a_call_ends_it_once_and_gives_back_its_memory(name: str, part: int) -> None:
    peer = Peer()
    peer.say(headers(1), data(1, message(bytes(2000))[:part]))
    assert peer.memory.used == max(0, part - 5)
    peer.say(ENDS[name])
    assert (peer.calls[0].ends, peer.memory.used, peer.connection.open) == (1, 0, 0)


def test_a_call_that_ends_within_a_message_has_a_status() -> None:
    for cut in (1, 4, 5, 7):
        peer = Peer()
        peer.say(headers(1), data(1, message(b"abc")[:cut], END_STREAM))
        assert peer.status()[0] is StatusCode.INTERNAL


@pytest.mark.parametrize("how", ["lost", "cancel", "fail"])
def test_the_end_of_a_connection_ends_its_calls(how: str) -> None:
    peer = Peer()
    peer.say(headers(1), headers(3), data(3, message(bytes(100))[:50]))
    if how == "lost":
        peer.connection.lost()
    elif how == "cancel":
        assert not list(peer.connection.cancel("the picker stops"))
        peer.hear()
        assert peer.status(3) == (StatusCode.UNAVAILABLE, "the picker stops")
    else:
        peer.connection.fail(ConnectionFailed(ErrorCode.INTERNAL_ERROR, "as a test says"))
        peer.hear()
    assert [(call.ends, peer.memory.used, peer.connection.open) for call in peer.calls] == [(1, 0, 0)] * 2


@pytest.mark.parametrize("how", ["lost", "cancel", "fail"])
def test_the_end_of_a_connection_ends_its_calls_some_at_a_time(how: str) -> None:
    peer = Peer()
    peer.say(*(headers(stream) for stream in range(1, 2000, 2)))
    ended = [0]
    turns: Iterator[object] = iter(peer.connection.lost, False)
    if how == "cancel":
        turns = peer.connection.cancel("the picker stops")
    elif how == "fail":
        peer.connection.fail(ConnectionFailed(ErrorCode.INTERNAL_ERROR, "as a test says"))
    for _ in turns:
        ended.append(sum(call.ends for call in peer.calls))
    assert [call.ends for call in peer.calls] == [1] * 1000
    assert peer.connection.open == 0
    assert max(after - before for before, after in pairwise(ended)) <= 200


@pytest.mark.parametrize("where", ["begin", "receive", "half_close", "end"])
def test_a_call_that_raises_fails_alone(where: str) -> None:
    with capture_logs() as logs:
        peer = Peer()
        other = peer.call("Echo", 1)
        peer.say(headers(3, fields=request(path=f"/test.Test/{where}")))
        peer.say(data(3, message(b"x"), END_STREAM), data(1, message(b"goes on")))
    assert peer.status(3)[0] is (StatusCode.OK if where == "end" else StatusCode.INTERNAL)
    assert (peer.data(1), other.ends, peer.connection.open) == (message(b"goes on"), 0, 1)
    assert [call.ends for call in peer.calls[1:]] == ([] if where == "begin" else [1])
    assert [(line["event"], line["path"]) for line in logs] == [("grpc.call_failed", f"/test.Test/{where}")]


def test_a_call_that_raises_when_it_is_drained_fails_alone() -> None:
    with capture_logs() as logs:
        peer = Peer(sets={4: 0})
        raising, other = peer.call("drained", 1), peer.call("Silent", 3)
        for call in (raising, other):
            call.stream.send(bytes(OPTIONS.send_buffer))
            assert call.stream.congested
        peer.say(window_updates(3_000_000))
    assert (raising.ends, other.drains, other.ends) == (1, 1, 0)
    assert peer.status(1)[0] is StatusCode.INTERNAL
    assert peer.data(1) == peer.data(3) == message(bytes(OPTIONS.send_buffer))
    assert [line["event"] for line in logs] == ["grpc.call_failed"]


def window_updates(size: int) -> bytes:
    return b"".join(frame(8, 0, stream, size.to_bytes(4, "big")) for stream in (1, 3, 0))


def test_messages_of_all_streams_share_a_budget_of_memory() -> None:
    peer = Peer(memory=MemoryBudget(3000))
    peer.say(headers(1), data(1, message(bytes(2500))[:2000]), headers(3), data(3, message(bytes(2500))[:2000]))
    assert peer.memory.used <= 3000
    peer.say(data(1, bytes(505), END_STREAM), data(3, bytes(505), END_STREAM))
    statuses = [peer.status(stream)[0] for stream in (1, 3)]
    assert sorted(statuses) == [StatusCode.OK, StatusCode.RESOURCE_EXHAUSTED]
    assert (peer.memory.used, [call.ends for call in peer.calls]) == (0, [1, 1])


# GOAWAY


def test_a_draining_server_takes_what_was_under_way_and_then_nothing() -> None:
    peer = Peer()
    peer.call("Echo", 1)
    peer.connection.drain(last=False)
    (warning,) = peer.hear()
    assert (warning.kind, warning.number, warning.code) == (GOAWAY, 2**31 - 1, ErrorCode.NO_ERROR)
    peer.call("Echo", 3)
    peer.connection.drain(last=True)
    (final,) = peer.hear()
    assert (final.kind, final.number, final.code) == (GOAWAY, 3, ErrorCode.NO_ERROR)
    assert peer.say(headers(5), data(5, message(b"late")), reset(5)) == []
    peer.connection.drain(last=True)
    peer.say(*(data(stream, message(b"open"), END_STREAM) for stream in (1, 3)))
    assert (peer.data(1), peer.data(3), peer.connection.open, len(peer.calls)) == (message(b"open"),) * 2 + (0, 2)
    peer.say(data(0, b"x"))
    assert [received.number for received in peer.heard if received.kind == GOAWAY] == [2**31 - 1, 3, 3, 3]
