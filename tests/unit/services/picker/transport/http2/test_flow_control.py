"""Windows in both directions: neither side sends more than the other takes, and nothing waits for ever."""

from itertools import groupby

import pytest
from msgspec import structs

from services.picker.transport.calls import StatusCode
from services.picker.transport.http2.errors import ErrorCode
from tests.unit.services.picker.transport.http2.peer import (
    DATA,
    END_HEADERS,
    END_STREAM,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    OPTIONS,
    WINDOW_UPDATE,
    Peer,
    data,
    headers,
    message,
    request,
    settings,
    window_update,
)

SMALL = structs.replace(OPTIONS, stream_window=70_000, connection_window=100_000)


def credit(peer: Peer, stream: int) -> int:
    """What the server has allowed beyond the first windows."""
    given = [frame.number for frame in peer.heard if (frame.kind, frame.stream) == (WINDOW_UPDATE, stream)]
    return sum(given) - (SMALL.connection_window - 65_535 if stream == 0 else 0)


# What the client sends


def test_a_client_may_always_send_a_window_and_never_more() -> None:
    peer = Peer(SMALL)
    peer.call("Silent")
    sent = 0
    for _ in range(50):
        peer.say(data(1, bytes(9_000)))
        sent += 9_000
        assert 0 <= sent - credit(peer, 1) <= SMALL.stream_window / 2
        assert 0 <= sent - credit(peer, 0) <= SMALL.connection_window / 2
    assert peer.failure() is None


def test_padding_counts() -> None:
    peer = Peer(SMALL)
    peer.call("Silent")
    for _ in range(200):
        peer.say(data(1, message(b"x"), pad=255))
    assert 200 * 262 - credit(peer, 1) <= SMALL.stream_window / 2
    assert 200 * 262 - credit(peer, 0) <= SMALL.connection_window / 2


def test_more_than_the_streams_window_ends_the_stream() -> None:
    peer = Peer(SMALL)
    call = peer.call("Silent")
    call.stream.pause()
    peer.say(data(1, bytes(60_000)), data(1, bytes(10_001)))
    assert (peer.resets(), peer.failure(), call.ends) == ({1: ErrorCode.FLOW_CONTROL_ERROR}, None, 1)


def test_more_than_the_connections_window_ends_the_connection() -> None:
    peer = Peer(structs.replace(SMALL, connection_window=65_535, max_frame_size=200_000))
    peer.call("Silent")
    peer.say(data(1, bytes(65_536)))
    assert peer.failure() is ErrorCode.FLOW_CONTROL_ERROR


def test_a_paused_call_gets_what_was_promised_and_no_more() -> None:
    peer = Peer(SMALL)
    call = peer.call("Silent")
    call.stream.pause()
    peer.say(data(1, message(bytes(60_000))))
    assert credit(peer, 1) == 0
    call.stream.resume()
    peer.hear()
    assert (credit(peer, 1), len(call.messages)) == (60_005, 1)


@pytest.mark.parametrize("pad", [None, 9])
@pytest.mark.parametrize("fields", [request(), request(content_length="15000")])
def test_thousands_of_messages_in_a_frame_take_several_turns(pad: int | None, fields: list[tuple[str, str]]) -> None:
    peer = Peer(SMALL)
    messages = [b"%5d" % number for number in range(1_500)]
    sent = headers(1, fields=fields) + data(1, b"".join(map(message, messages)), END_STREAM, pad)
    turns, more = 0, peer.connection.receive(sent + headers(3), 0.0)
    while more:
        before = len(peer.calls[0].messages)
        more = peer.connection.receive(b"", 0.0)
        assert len(peer.calls[0].messages) - before <= len(messages) / 5
        turns += 1
    peer.hear()
    assert (turns > 4, peer.calls[0].messages, peer.calls[0].half_closed) == (True, messages, 1)
    assert (peer.data(1), len(peer.calls)) == (b"".join(map(message, messages)), 2)
    assert len(sent) - credit(peer, 0) <= SMALL.connection_window / 2


def test_a_call_that_ends_between_the_messages_of_a_frame_gets_no_more() -> None:
    peer = Peer(SMALL)
    call = peer.call("Silent")
    assert peer.connection.receive(data(1, message(b"x") * 2_000), 0.0)
    call.stream.finish()
    heard = len(call.messages)
    peer.say(b"")
    assert (len(call.messages), call.ends, peer.connection.open) == (heard, 1, 0)
    assert (peer.failure(), 12_000 - credit(peer, 0) <= SMALL.connection_window / 2) == (None, True)


def test_data_of_streams_that_have_ended_is_given_back_to_the_connection() -> None:
    peer = Peer(SMALL)
    peer.call("Silent").stream.finish()
    for _ in range(100):
        peer.say(data(1, bytes(10_000)))
    assert (peer.failure(), 1_000_000 - credit(peer, 0) <= SMALL.connection_window / 2) == (None, True)


# What the server sends


@pytest.mark.parametrize("window", [0, 1, 7, 65_535])
@pytest.mark.parametrize("size", [0, 1, 20_000])
def test_messages_beyond_a_window_wait_for_it_in_order(window: int, size: int) -> None:
    peer = Peer(sets={INITIAL_WINDOW_SIZE: window})
    call = peer.call("Silent")
    contents = [bytes((at,)) * size for at in range(5)]
    for content in contents:
        call.stream.send(content)
    call.stream.finish()
    peer.hear()
    whole = b"".join(map(message, contents))
    taken = window
    while taken < len(whole):
        assert peer.data() == whole[:taken]
        more = min(9_999, len(whole) - taken)
        peer.say(window_update(1, more), window_update(0, more))
        taken += more
    assert (peer.data(), peer.status(), call.ends) == (whole, (StatusCode.OK, ""), 1)


def test_no_frame_is_longer_than_the_client_takes() -> None:
    for limit in (2**14, 2**15):
        peer = Peer(sets={INITIAL_WINDOW_SIZE: 2**20, MAX_FRAME_SIZE: limit})
        peer.say(window_update(0, 2**20))
        peer.call("Silent").stream.send(bytes(100_000))
        frames = [len(frame.payload) for frame in peer.hear() if frame.kind == DATA]
        assert frames == [limit] * (100_005 // limit) + [100_005 % limit]


def test_the_connections_window_limits_all_streams_which_take_turns() -> None:
    peer = Peer(sets={INITIAL_WINDOW_SIZE: 2**20})
    peer.say(window_update(0, 1))
    for stream in (1, 3, 5):
        peer.call("Silent", stream)
    for call in peer.calls:
        call.stream.send(bytes(100_000))
    peer.hear()
    assert sum(len(peer.data(stream)) for stream in (1, 3, 5)) == 65_536
    heard = [frame.stream for frame in peer.say(window_update(0, 6 * 2**14)) if frame.kind == DATA]
    assert [len(list(each)) for _, each in groupby(heard)] == [1] * 6
    peer.say(window_update(0, 2**20))
    assert [peer.data(stream) for stream in (1, 3, 5)] == [message(bytes(100_000))] * 3


def test_a_stream_without_a_window_holds_up_no_other() -> None:
    peer = Peer(sets={INITIAL_WINDOW_SIZE: 10})
    for stream in (1, 3):
        peer.call("Silent", stream).stream.send(bytes(100))
    peer.say(window_update(3, 1000))
    assert (len(peer.data(1)), len(peer.data(3))) == (10, 105)


def test_a_smaller_window_is_paid_back_before_more_is_sent() -> None:
    peer = Peer(sets={INITIAL_WINDOW_SIZE: 100})
    call = peer.call("Silent")
    call.stream.send(bytes(95))
    peer.say(settings({INITIAL_WINDOW_SIZE: 40}))  # the window is -60
    call.stream.send(bytes(95))
    peer.say(window_update(1, 60))
    assert len(peer.data()) == 100
    peer.say(window_update(1, 1))
    assert len(peer.data()) == 101
    peer.say(settings({INITIAL_WINDOW_SIZE: 1000}))
    assert peer.data() == message(bytes(95)) * 2


def test_a_call_that_is_congested_hears_when_it_isnt() -> None:
    options = structs.replace(OPTIONS, send_buffer=1000)
    peer = Peer(options, sets={INITIAL_WINDOW_SIZE: 0})
    call = peer.call("Silent")
    call.stream.send(bytes(900))
    assert (call.stream.congested, call.drains) == (False, 0)
    call.stream.send(bytes(900))
    assert (call.stream.congested, call.drains) == (True, 0)
    peer.say(window_update(1, 600))
    assert (call.stream.congested, call.drains) == (True, 0)
    peer.say(window_update(1, 600))
    assert (call.stream.congested, call.drains) == (False, 1)
    peer.say(window_update(1, 6000))
    call.stream.send(bytes(5000))  # which passes at once: it was never congested
    assert call.drains == 1


def test_while_the_socket_takes_nothing_calls_are_congested_and_nothing_is_lost() -> None:
    peer = Peer(sets={INITIAL_WINDOW_SIZE: 2**30})
    peer.say(window_update(0, 2**30))
    call = peer.call("Silent")
    peer.connection.hold()
    peer.connection.hold()
    for _ in range(2):
        call.stream.send(bytes(OPTIONS.send_buffer))
    assert (call.stream.congested, [frame.kind for frame in peer.hear() if frame.kind == DATA]) == (True, [])
    peer.say(window_update(0, 5), data(1, b"", END_STREAM))
    peer.connection.release()
    peer.say(b"")
    assert (peer.data(), call.drains) == (message(bytes(OPTIONS.send_buffer)) * 2, 1)
    peer.say(window_update(0, 2**31 - 1))
    assert peer.failure() is ErrorCode.FLOW_CONTROL_ERROR


MANY = 1000


@pytest.mark.parametrize("opens", ["the streams' windows", "the connection's window", "the socket"])
def test_what_has_waited_on_many_streams_leaves_in_several_turns(opens: str) -> None:
    peer = Peer(sets={INITIAL_WINDOW_SIZE: 0 if opens == "the streams' windows" else 2**20})
    if opens == "the connection's window":
        peer.call("Silent").stream.send(bytes(65_535 - 5))
    else:
        peer.say(window_update(0, 2**20))
    if opens == "the socket":
        peer.connection.hold()
    for stream in range(3, 3 + 2 * MANY, 2):
        peer.call("Silent", stream).stream.send(b"echo")
    peer.hear()
    before = len(peer.heard)

    connection = peer.connection
    if opens == "the socket":
        connection.release()
        more = connection.unfinished
    elif opens == "the connection's window":
        more = connection.receive(window_update(0, 2**20), 0.0)
    else:
        more = connection.receive(settings({INITIAL_WINDOW_SIZE: 100}), 0.0)
    turns = [len(peer.hear())]
    while more:
        more = connection.receive(b"", 0.0)
        turns.append(len(peer.hear()))
    assert len(turns) >= 10
    assert max(turns) <= MANY / 4
    sent = [one.payload for one in peer.heard[before:] if one.kind == DATA]
    assert sent == [message(b"echo")] * MANY


def test_what_was_sent_leaves_before_the_status_also_when_that_comes_first() -> None:
    peer = Peer(sets={INITIAL_WINDOW_SIZE: 3})
    peer.say(headers(1), data(1, message(b"echo"), END_STREAM))
    assert (peer.calls[0].ends, peer.connection.open, peer.data()) == (1, 1, message(b"echo")[:3])
    peer.say(headers(3, END_HEADERS, request(path="/test.Test/Silent")), window_update(1, 100))
    assert (peer.data(), peer.status()[0], peer.connection.open) == (message(b"echo"), StatusCode.OK, 1)
