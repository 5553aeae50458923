"""What a connection does when time passes: nothing sleeps, the test says how late it is."""

import pytest
from msgspec import structs

from services.picker.transport.calls import StatusCode
from services.picker.transport.http2.errors import ErrorCode
from tests.unit.services.picker.transport.http2.peer import (
    ACK,
    CONTINUATION,
    DATA,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    OPTIONS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    Peer,
    data,
    frame,
    headers,
    message,
    request,
    reset,
    settings,
    window_update,
)

NEVER = structs.replace(OPTIONS, keepalive_time=0.0, idle_timeout=0.0)


@pytest.mark.parametrize(
    "sent",
    [b"", PREFACE[:5], PREFACE, PREFACE + settings(), PREFACE + settings() + headers(1)],
    ids=["nothing", "a part", "the preface", "no acknowledgement", "a request"],
)
def test_a_handshake_that_takes_too_long_ends_the_connection(sent: bytes) -> None:
    peer = Peer(greets=False)
    for at in range(len(sent)):
        peer.say(sent[at : at + 1])
    peer.wait(OPTIONS.handshake_timeout)
    assert peer.failure() is None
    peer.wait(OPTIONS.handshake_timeout + 0.1)
    assert peer.failure() is ErrorCode.SETTINGS_TIMEOUT
    assert all(call.ends == 1 for call in peer.calls)


def test_a_handshake_in_time_is_enough() -> None:
    peer = Peer(NEVER, greets=False)
    peer.now = 9.0
    peer.say(PREFACE, settings(), frame(SETTINGS, ACK, 0))
    peer.wait(1e9)
    assert peer.failure() is None


@pytest.mark.parametrize("window", [65_535, 0])
def test_a_request_that_isnt_grpc_is_answered_once_though_it_doesnt_end(window: int) -> None:
    peer = Peer(NEVER, sets={INITIAL_WINDOW_SIZE: window})
    peer.say(headers(1, fields=request(method="GET")))
    peer.wait(NEVER.handshake_timeout)
    peer.say(data(1, b"x", END_STREAM), window_update(1, 1000))
    frames = [received for received in peer.heard if received.stream == 1]
    assert [received.kind for received in frames] == ([HEADERS, DATA, RST_STREAM] if window else [HEADERS, DATA])
    assert peer.decode(frames[0])[":status"] == "405"
    assert (peer.connection.open, peer.resets()) == (0, {1: ErrorCode.NO_ERROR} if window else {})


def test_a_connection_without_streams_is_closed_after_a_while() -> None:
    peer = Peer(structs.replace(NEVER, idle_timeout=100.0))
    peer.wait(99.0)
    peer.call("Silent")
    peer.wait(1000.0)
    assert peer.failure() is None
    peer.say(reset(1))
    peer.wait(1100.0)
    assert peer.failure() is None
    peer.wait(1100.1)
    assert peer.failure() is ErrorCode.NO_ERROR


@pytest.mark.parametrize("streams", [0, 1])
def test_a_silent_peer_is_asked_and_given_up_if_it_doesnt_answer(streams: int) -> None:
    peer = Peer(structs.replace(NEVER, keepalive_time=30.0, keepalive_timeout=10.0))
    for stream in range(streams):
        peer.call("Silent", 2 * stream + 1)
    assert peer.wait(29.9) == []
    (ping,) = peer.wait(30.0)
    assert (ping.kind, ping.flags, peer.wakes) == (PING, 0, 1)
    assert peer.wait(39.9) == []
    peer.now = 39.9
    peer.say(frame(PING, ACK, 0, ping.payload))
    assert peer.wait(69.8) == []
    assert [received.kind for received in peer.wait(69.9)] == [PING]
    peer.wait(80.0)
    assert peer.failure() is ErrorCode.NO_ERROR
    assert all(call.ends == 1 for call in peer.calls)


@pytest.mark.parametrize(
    ("timeout", "seconds"), [("2H", 7200.0), ("3M", 180.0), ("10S", 10.0), ("10000m", 10.0), ("5000000u", 5.0)]
)
def test_a_deadline_ends_its_call(timeout: str, seconds: float) -> None:
    peer = Peer(NEVER)
    fields = request(path="/test.Test/Silent", grpc_timeout=timeout)
    peer.say(headers(1, fields=fields), headers(3, fields=request(path="/test.Test/Silent")))
    peer.wait(seconds - 0.01)
    assert peer.connection.open == 2
    peer.wait(seconds)
    assert (peer.status()[0], peer.calls[0].ends, peer.connection.open) == (StatusCode.DEADLINE_EXCEEDED, 1, 1)
    assert peer.wakes == 1


def test_deadlines_pass_in_any_order_and_those_of_ended_calls_do_nothing() -> None:
    peer = Peer(NEVER)
    for stream, timeout in ((1, "30S"), (3, "10S"), (5, "20S"), (7, "0S")):
        peer.say(headers(stream, fields=request(path="/test.Test/Silent", grpc_timeout=timeout)))
    peer.say(data(3, b"", END_STREAM), reset(3))
    ended = []
    for now in (0.0, 10.0, 20.0, 30.0):
        peer.wait(now)
        ended.append([call.ends for call in peer.calls])
    assert ended == [[0, 1, 0, 1], [0, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1]]


def test_many_deadlines_and_stalled_streams_pass_some_at_a_time() -> None:
    peer = Peer(NEVER, sets={INITIAL_WINDOW_SIZE: 1})
    peer.say(*(headers(stream, fields=request(grpc_timeout="1S")) for stream in range(1, 1000, 2)))
    peer.say(*(headers(stream) + data(stream, message(b"abc")) for stream in range(1001, 2000, 2)))
    for now in (2.0, OPTIONS.stall_timeout + 1):
        before, turns = peer.connection.open, 1
        while peer.connection.tick(now):
            turns += 1
        assert before - peer.connection.open == 500
        assert turns >= 5
    assert [call.ends for call in peer.calls] == [1] * 1000
    assert (peer.connection.open, peer.failure()) == (0, None)


@pytest.mark.parametrize("window", ["stream", "connection"])
def test_a_window_that_is_left_closed_ends_what_it_belongs_to(window: str) -> None:
    peer = Peer(NEVER, sets={INITIAL_WINDOW_SIZE: 0 if window == "stream" else 2**30})
    call = peer.call("Silent")
    peer.wait(1000.0)
    call.stream.send(bytes(70_000))
    call.stream.finish()
    peer.wait(1000.0 + OPTIONS.stall_timeout)
    assert peer.failure() is None
    peer.say(window_update(0 if window == "connection" else 1, 1))  # a byte is progress
    peer.wait(1000.0 + 2 * OPTIONS.stall_timeout)
    assert peer.failure() is None
    peer.wait(1000.1 + 2 * OPTIONS.stall_timeout)
    ended = {1: ErrorCode.ENHANCE_YOUR_CALM}, None
    assert (peer.resets(), peer.failure()) == (ended if window == "stream" else ({}, ErrorCode.ENHANCE_YOUR_CALM))
    assert (peer.connection.open, call.ends) == (0, 1)


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        (data(1, bytes(1000))[:9], b"x"),
        (frame(HEADERS, 0, 3, b"x"), frame(CONTINUATION, 0, 3, b"x")),
        (frame(HEADERS, 0, 3, b"x") + frame(CONTINUATION, 0, 3, bytes(1000))[:9], b"x"),
    ],
    ids=["a frame", "a header block", "a frame of a header block"],
)
def test_what_isnt_complete_in_time_ends_the_connection_though_more_comes(begins: bytes, goes_on: bytes) -> None:
    peer = Peer(NEVER)
    call = peer.call("Silent")
    peer.wait(1000.0)
    peer.say(data(1, message(b"before")) + begins)
    for part in range(1, 4):
        peer.wait(1000.0 + part * OPTIONS.stall_timeout / 4)
        peer.say(goes_on)
    peer.wait(1000.0 + OPTIONS.stall_timeout)
    assert peer.failure() is None
    peer.wait(1000.1 + OPTIONS.stall_timeout)
    assert (peer.failure(), call.ends) == (ErrorCode.ENHANCE_YOUR_CALM, 1)


def test_frames_of_which_each_is_complete_in_time_go_on_for_ever() -> None:
    peer, sent = Peer(NEVER), data(1, message(b"hello"))
    call = peer.call("Silent")
    peer.say(sent[:5])
    for turn in range(1, 20):
        peer.wait(turn * (OPTIONS.stall_timeout - 1))
        peer.say(sent[5:] + sent[:5])
    assert (peer.failure(), len(call.messages)) == (None, 19)


@pytest.mark.parametrize("begins", [data(1, message(b"hello"))[:-1], frame(HEADERS, 0, 3, b"\x82")])
def test_while_the_socket_takes_nothing_no_rest_is_due(begins: bytes) -> None:
    """It isn't read."""
    peer = Peer(NEVER)
    peer.call("Silent")
    peer.say(begins)
    peer.connection.hold()
    for _ in range(2):
        peer.wait(peer.now + OPTIONS.stall_timeout)
    peer.connection.release()
    peer.say(b"")
    peer.wait(peer.now + OPTIONS.stall_timeout)
    assert peer.failure() is None
    peer.wait(peer.now + 0.1)
    assert peer.failure() is ErrorCode.ENHANCE_YOUR_CALM


def test_a_peer_that_reads_slowly_is_served() -> None:
    peer = Peer(NEVER, sets={INITIAL_WINDOW_SIZE: 0})
    call = peer.call("Silent")
    call.stream.send(bytes(100))
    for at in range(1, 106):
        peer.wait(at * (OPTIONS.stall_timeout - 1))
        peer.say(window_update(1, 1))
    assert (peer.data(), peer.failure()) == (message(bytes(100)), None)
