"""What a client may not say (RFC 9113), and what it may: which of stream and connection ends, and with which code."""

import pytest

from services.picker.transport.calls import StatusCode
from services.picker.transport.http2.errors import ErrorCode
from tests.unit.services.picker.transport.http2.peer import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PADDED,
    PING,
    PREFACE,
    PRIORITIZED,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Peer,
    block,
    data,
    frame,
    headers,
    message,
    request,
    reset,
    settings,
    window_update,
)

PROTOCOL, SIZE, FLOW = ErrorCode.PROTOCOL_ERROR, ErrorCode.FRAME_SIZE_ERROR, ErrorCode.FLOW_CONTROL_ERROR
CLOSED = ErrorCode.STREAM_CLOSED
HEAD = block()
ENDED = headers(1, END_HEADERS | END_STREAM)

BEGINNINGS = {
    "HTTP/1.1": (b"GET / HTTP/1.1\r\n", PROTOCOL),
    "one wrong byte": (b"Q", PROTOCOL),
    "TLS": (b"\x16\x03\x01\x02\x00", PROTOCOL),
    "no SETTINGS": (PREFACE + frame(PING, 0, 0, bytes(8)), PROTOCOL),
    "an acknowledgement": (PREFACE + frame(SETTINGS, ACK, 0), PROTOCOL),
    "the preface": (PREFACE + settings(), None),
    "the preface and settings that don't matter": (PREFACE + settings({1: 0, 2: 1, 3: 9, 0x99: 2**32 - 1}), None),
}


@pytest.mark.parametrize("name", BEGINNINGS)
@pytest.mark.parametrize("cut", [1, 100_000])
def test_a_connection_begins_with_the_preface_and_settings(name: str, cut: int) -> None:
    sent, code = BEGINNINGS[name]
    peer = Peer(greets=False)
    for at in range(0, len(sent), cut):
        peer.say(sent[at : at + cut])
    assert peer.failure() == code
    assert [received.kind for received in peer.heard[:2]] == [SETTINGS, WINDOW_UPDATE]


CONNECTION_ERRORS = {
    "DATA on stream 0": (data(0, b"x"), PROTOCOL),
    "DATA on an idle stream": (data(1, b"x"), PROTOCOL),
    "DATA on an even stream": (data(2, b"x"), PROTOCOL),
    "DATA padded by its own length": (headers(1) + frame(DATA, PADDED, 1, b"\x01"), PROTOCOL),
    "DATA padded without a length": (headers(1) + frame(DATA, PADDED, 1, b""), PROTOCOL),
    "HEADERS on stream 0": (headers(0), PROTOCOL),
    "HEADERS on an even stream": (headers(2), PROTOCOL),
    "HEADERS on a stream that has ended": (ENDED + headers(1), CLOSED),
    "HEADERS on a stream that was skipped": (headers(3) + headers(1), CLOSED),
    "HEADERS padded by more than their length": (frame(HEADERS, END_HEADERS | PADDED, 1, b"\x63" + HEAD), PROTOCOL),
    "HEADERS too short for their priority": (frame(HEADERS, END_HEADERS | PRIORITIZED, 1, bytes(4)), SIZE),
    "HEADERS that depend on themselves": (
        frame(HEADERS, END_HEADERS | PRIORITIZED, 1, b"\0\0\0\x01\x10" + HEAD),
        PROTOCOL,
    ),
    "HEADERS within a header block": (frame(HEADERS, 0, 1, HEAD[:5]) + headers(1), PROTOCOL),
    "PING within a header block": (frame(HEADERS, 0, 1, HEAD[:5]) + frame(PING, 0, 0, bytes(8)), PROTOCOL),
    "an unknown frame within a header block": (frame(HEADERS, 0, 1, HEAD[:5]) + frame(0x42, 0, 0), PROTOCOL),
    "CONTINUATION of another stream": (frame(HEADERS, 0, 1, HEAD) + frame(CONTINUATION, 4, 3), PROTOCOL),
    "CONTINUATION of nothing": (headers(1) + frame(CONTINUATION, END_HEADERS, 1), PROTOCOL),
    "PRIORITY on stream 0": (frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL),
    "PRIORITY that depends on itself": (frame(PRIORITY, 0, 1, b"\0\0\0\x01\x10"), PROTOCOL),
    "PRIORITY of another size": (frame(PRIORITY, 0, 1, bytes(4)), SIZE),
    "RST_STREAM on stream 0": (reset(0), PROTOCOL),
    "RST_STREAM on an idle stream": (reset(1), PROTOCOL),
    "RST_STREAM of another size": (headers(1) + frame(RST_STREAM, 0, 1, bytes(3)), SIZE),
    "SETTINGS on a stream": (frame(SETTINGS, 0, 1), PROTOCOL),
    "SETTINGS of another size": (frame(SETTINGS, 0, 0, bytes(5)), SIZE),
    "SETTINGS ACK with settings": (frame(SETTINGS, ACK, 0, bytes(6)), SIZE),
    "SETTINGS_ENABLE_PUSH 2": (settings({2: 2}), PROTOCOL),
    "SETTINGS_MAX_FRAME_SIZE too small": (settings({MAX_FRAME_SIZE: 2**14 - 1}), PROTOCOL),
    "SETTINGS_MAX_FRAME_SIZE too large": (settings({MAX_FRAME_SIZE: 2**24}), PROTOCOL),
    "SETTINGS_INITIAL_WINDOW_SIZE too large": (settings({INITIAL_WINDOW_SIZE: 2**31}), FLOW),
    "SETTINGS that widen an open window too much": (
        headers(1) + window_update(1, 2**31 - 2**16) + settings({INITIAL_WINDOW_SIZE: 2**17}),
        FLOW,
    ),
    "PUSH_PROMISE": (headers(1) + frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4) + HEAD), PROTOCOL),
    "PING on a stream": (frame(PING, 0, 1, bytes(8)), PROTOCOL),
    "PING of another size": (frame(PING, 0, 0, bytes(7)), SIZE),
    "GOAWAY on a stream": (frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL),
    "GOAWAY that is too short": (frame(GOAWAY, 0, 0, bytes(7)), SIZE),
    "WINDOW_UPDATE of another size": (frame(WINDOW_UPDATE, 0, 0, bytes(3)), SIZE),
    "WINDOW_UPDATE by 0": (window_update(0, 0), PROTOCOL),
    "WINDOW_UPDATE beyond the largest window": (window_update(0, 2**31 - 1), FLOW),
    "WINDOW_UPDATE on an idle stream": (window_update(1, 1), PROTOCOL),
}


@pytest.mark.parametrize("name", CONNECTION_ERRORS)
def test_what_breaks_the_protocol_ends_the_connection(name: str) -> None:
    sent, code = CONNECTION_ERRORS[name]
    peer = Peer()
    peer.say(sent)
    assert peer.failure() == code
    assert all(call.ends == 1 for call in peer.calls)
    last = peer.heard[-1].number
    assert peer.say(headers(99)) == []
    assert last == max([call.stream.id for call in peer.calls if hasattr(call.stream, "id")], default=last)


STREAM_ERRORS = {
    "WINDOW_UPDATE by 0": (headers(1) + window_update(1, 0), PROTOCOL),
    "WINDOW_UPDATE beyond the largest window": (headers(1) + window_update(1, 2**31 - 1), FLOW),
    "DATA after the end": (ENDED + data(1, b"x"), CLOSED),
    "trailers after the end": (
        headers(1, END_HEADERS | END_STREAM, request(path="/test.Test/Silent")) + headers(1, END_HEADERS | END_STREAM),
        CLOSED,
    ),
    "trailers that don't end the stream": (headers(1) + headers(1, END_HEADERS, [("x", "y")]), PROTOCOL),
    "trailers with pseudo-headers": (headers(1) + headers(1, END_HEADERS | END_STREAM), PROTOCOL),
    "less than content-length": (
        headers(1, fields=request(content_length="9")) + data(1, message(b"abc"), END_STREAM),
        PROTOCOL,
    ),
    "more than content-length": (headers(1, fields=request(content_length="7")) + data(1, message(b"abc")), PROTOCOL),
    "less than content-length, by trailers": (
        headers(1, fields=request(content_length="9")) + headers(1, END_HEADERS | END_STREAM, [("x", "y")]),
        PROTOCOL,
    ),
    **{
        f"headers with {name}": (headers(1, fields=fields), PROTOCOL)
        for name, fields in {
            "no method": request(method=None),
            "no scheme": request(scheme=None),
            "no path": request(path=None),
            "an empty path": request(path=""),
            "a pseudo-header twice": [(":path", "/"), *request()],
            "a late pseudo-header": [*request(), (":late", "x")],
            "an unknown pseudo-header": [(":status", "200"), *request()],
            "upper case": [*request(), ("X-Upper", "x")],
            "an empty name": [*request(), ("", "x")],
            "a line break": [*request(), ("x", "a\r\nb")],
            "a zero byte": [*request(), ("x", "\0")],
            "a blank before a value": [*request(), ("x", " a")],
            "a blank after a value": [*request(), ("x", "a\t")],
            "connection": [*request(), ("connection", "close")],
            "transfer-encoding": [*request(), ("transfer-encoding", "chunked")],
            "te that isn't trailers": [*request(te=None), ("te", "gzip")],
            "a content-length that is no number": request(content_length="-1"),
            "one of a foreign digit": request(content_length="²"),
            "two content-lengths": [*request(content_length="6"), ("content-length", "7")],
        }.items()
    },
}


@pytest.mark.parametrize("name", STREAM_ERRORS)
def test_what_is_wrong_with_a_stream_ends_that_stream_alone(name: str) -> None:
    sent, code = STREAM_ERRORS[name]
    peer = Peer()
    peer.say(headers(99), data(99, message(b"before")))
    peer = Peer()
    peer.say(sent)
    assert (peer.failure(), peer.resets().get(1)) == (None, code)
    assert all(call.ends == 1 for call in peer.calls)
    peer.say(headers(3), data(3, message(b"after"), END_STREAM))
    assert (peer.data(3), peer.status(3)[0]) == (message(b"after"), StatusCode.OK)
    assert (peer.connection.open, peer.memory.used) == (0, 0)


ALLOWED = {
    "padding": headers(1) + data(1, message(b"a"), pad=255) + data(1, b"", END_STREAM, pad=0),
    "padded headers": frame(HEADERS, END_HEADERS | PADDED, 1, b"\x05" + HEAD + bytes(5))
    + data(1, message(b"a"), END_STREAM),
    "priorities": frame(PRIORITY, 0, 9, b"\x80\0\0\x01\x10")
    + frame(HEADERS, END_HEADERS | PRIORITIZED, 1, b"\x80\0\0\x09\xff" + HEAD)
    + frame(PRIORITY, 0, 1, b"\0\0\0\x09\x10")
    + data(1, message(b"a"), END_STREAM),
    "fragments of headers": frame(HEADERS, 0, 1, HEAD[:1])
    + frame(CONTINUATION, 0, 1)
    + frame(CONTINUATION, END_HEADERS, 1, HEAD[1:])
    + data(1, message(b"a"), END_STREAM),
    "a header block whose first frame ends the stream, without a message": headers(1)
    + data(1, message(b"a"))
    + frame(HEADERS, END_STREAM, 1)
    + frame(CONTINUATION, END_HEADERS, 1, block([("x", "y")])),
    "trailers": headers(1) + data(1, message(b"a")) + headers(1, END_HEADERS | END_STREAM, [("x", "y")]),
    "content-length": headers(1, fields=request(content_length="6")) + data(1, message(b"a"), END_STREAM),
    "the same content-length twice": headers(1, fields=[*request(content_length="6"), ("content-length", "6")])
    + data(1, message(b"a"), END_STREAM),
    "a message in pieces": headers(1)
    + b"".join(data(1, message(b"a")[at : at + 1]) for at in range(6))
    + data(1, b"", END_STREAM),
    "unknown frames": headers(1) + frame(0x42, 0xFF, 1, b"x") + data(1, message(b"a"), END_STREAM),
    "unknown flags": headers(1, 0xC2 | END_HEADERS) + data(1, message(b"a"), END_STREAM | 0xF6),
    "the reserved bit of a stream's id": headers(1) + data(2**31 + 1, message(b"a"), END_STREAM),
    "GOAWAY of the client": headers(1) + frame(GOAWAY, 0, 0, bytes(8)) + data(1, message(b"a"), END_STREAM),
    "a new size of the table": frame(HEADERS, END_HEADERS, 1, b"\x20\x3f\xe1\x1f" + HEAD)
    + data(1, message(b"a"), END_STREAM),
    "te: trailers, host and binary metadata": headers(1, fields=[*request(), ("host", "x"), ("x-bin", "AAEC")])
    + data(1, message(b"a"), END_STREAM),
    "skipped streams": headers(1) + data(1, message(b"a"), END_STREAM) + headers(9) + reset(9),
}


@pytest.mark.parametrize("name", ALLOWED)
@pytest.mark.parametrize("cut", [1, 5, 100_000])
def test_what_the_protocol_allows_passes_however_it_is_cut(name: str, cut: int) -> None:
    sent, peer = ALLOWED[name], Peer()
    for at in range(0, len(sent), cut):
        peer.say(sent[at : at + cut])
    assert (peer.failure(), peer.data(), peer.status()) == (None, message(b"a"), (StatusCode.OK, ""))
    assert (peer.calls[0].messages, peer.calls[0].half_closed, peer.calls[0].ends) == ([b"a"], 1, 1)


def test_what_was_under_way_when_a_stream_ended_is_no_error() -> None:
    late = data(1, message(b"late")), headers(1, END_HEADERS | END_STREAM, [("x", "y")]), window_update(1, 5), reset(1)
    for each in late:
        peer = Peer()
        peer.say(headers(1, fields=request(path="/test.Test/begin")))
        assert peer.say(each) == []
        assert peer.failure() is None


def test_a_header_block_of_a_stream_that_has_ended_still_changes_the_table() -> None:
    peer = Peer()
    peer.say(headers(1, fields=request(path="/test.Test/begin")))
    peer.say(frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x40\x01x\x01y"))
    peer.say(frame(HEADERS, END_HEADERS, 3, HEAD + b"\xbe"))
    assert ("x", "y") in peer.calls[0].metadata


def test_the_same_block_means_something_else_after_the_table_has_changed() -> None:
    peer = Peer()
    for stream, value in ((1, b"1"), (201, b"2")):
        peer.say(frame(HEADERS, END_HEADERS | END_STREAM, stream, HEAD + b"\x40\x01x\x01" + value))
        for later in (10, 20):
            peer.say(frame(HEADERS, END_HEADERS | END_STREAM, stream + later, HEAD + b"\xbe"))
    peer.say(frame(HEADERS, END_HEADERS | END_STREAM, 401, b"\x20" + HEAD))
    assert [dict(call.metadata).get("x") for call in peer.calls] == ["1"] * 3 + ["2"] * 3 + [None]
    peer.say(frame(HEADERS, END_HEADERS | END_STREAM, 403, HEAD + b"\xbe"))
    assert peer.failure() is ErrorCode.COMPRESSION_ERROR


@pytest.mark.parametrize("cut", [1, 100_000])
def test_pings_and_settings_are_acknowledged_in_order(cut: int) -> None:
    sent, peer = frame(PING, 0, 0, b"12345678") + settings({1: 1}) + frame(PING, 0, 0, b"abcdefgh"), Peer()
    peer.heard.clear()
    for at in range(0, len(sent), cut):
        peer.say(sent[at : at + cut])
    answers = [(received.kind, received.flags, received.payload) for received in peer.heard]
    assert answers == [(PING, ACK, b"12345678"), (SETTINGS, ACK, b""), (PING, ACK, b"abcdefgh")]
