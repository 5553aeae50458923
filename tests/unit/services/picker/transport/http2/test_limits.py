"""Every limit of `Http2Options`: what exceeds it ends the connection, or the stream, with the right code."""

import gzip
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest
from grpc_reflection.v1alpha import reflection_pb2
from hpack.hpack import encode_integer
from msgspec import structs

from services.picker.body_buffer import MemoryBudget
from services.picker.settings.http2_options import DEFAULTS, Http2Options
from services.picker.settings.picker import PickerSettings
from services.picker.transport.calls import Metadata, StatusCode, Stream
from services.picker.transport.http2 import unread
from services.picker.transport.http2.connection import Http2Connection
from services.picker.transport.http2.errors import ErrorCode
from services.picker.transport.http2.streams import StreamCount
from services.picker.transport.http2.unread import PATIENCE, make_room
from services.picker.transport.reflection import Reflection
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
    OPTIONS,
    PING,
    PREFACE,
    PRIORITY,
    REQUEST,
    SETTINGS,
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

CALM = ErrorCode.ENHANCE_YOUR_CALM
BURST = 10
"""Seconds' worth of a rate that may come at once."""


def repeated(unit: bytes) -> Iterator[bytes]:
    while True:
        yield unit


def rapid_resets() -> Iterator[bytes]:
    for stream in range(1, 2**31, 2):
        yield headers(stream) + reset(stream)


def provoked_resets() -> Iterator[bytes]:
    """The server resets what is wrong: CVE-2025-8671."""
    for stream in range(1, 2**31, 2):
        yield headers(stream) + window_update(stream, 0)


def malformed_requests() -> Iterator[bytes]:
    for stream in range(1, 2**31, 2):
        yield headers(stream, fields=request(path=None))


def once(*pieces: bytes) -> Callable[[], Iterable[bytes]]:
    return lambda: pieces


class Flood(NamedTuple):
    pieces: Callable[[], Iterable[bytes]]
    passes: int
    """Pieces that are taken before the connection ends."""
    before: bytes = b""
    code: ErrorCode = CALM


RATE = 3
CONTROLS = RATE * BURST - 2
"""Control frames that pass after the preface's two SETTINGS."""
EXCUSED = 4
"""Frames that may have been under way for a stream that the server has ended."""
ENDED_EARLY = headers(1, END_HEADERS, request(path="/test.Test/begin"))
OPEN = headers(1, END_HEADERS, request(path="/test.Test/Silent"))
FLOODS = {
    "rapid reset, CVE-2023-44487": Flood(rapid_resets, RATE * BURST),
    "resets that the client provokes": Flood(provoked_resets, RATE * BURST),
    "malformed requests": Flood(malformed_requests, RATE * BURST),
    "PING": Flood(lambda: repeated(frame(PING, 0, 0, bytes(8))), CONTROLS),
    "PING ACK": Flood(lambda: repeated(frame(PING, ACK, 0, bytes(8))), CONTROLS),
    "SETTINGS": Flood(lambda: repeated(settings({1: 4096})), CONTROLS),
    "SETTINGS ACK": Flood(lambda: repeated(frame(SETTINGS, ACK, 0)), CONTROLS),
    "SETTINGS over open streams": Flood(
        lambda: repeated(settings({4: 70_000})),
        (CONTROLS - 1) // 2,
        before=b"".join(headers(stream) for stream in range(1, 203, 2)),
    ),
    "PRIORITY": Flood(lambda: repeated(frame(PRIORITY, 0, 1, bytes(5))), CONTROLS),
    "GOAWAY": Flood(lambda: repeated(frame(GOAWAY, 0, 0, bytes(8))), CONTROLS),
    "unknown frames": Flood(lambda: repeated(frame(0x42, 0, 0, b"x")), CONTROLS),
    "empty DATA": Flood(lambda: repeated(data(1, b"")), CONTROLS, before=OPEN),
    "DATA of padding alone": Flood(lambda: repeated(data(1, b"", pad=9)), CONTROLS, before=OPEN),
    "empty DATA of a stream that the server has ended": Flood(
        lambda: repeated(data(1, b"")), CONTROLS + EXCUSED, before=ENDED_EARLY
    ),
    "RST_STREAM of a stream that the server has ended": Flood(
        lambda: repeated(reset(1)), CONTROLS + EXCUSED, before=headers(1, fields=request(path="/test.Test/begin"))
    ),
    "RST_STREAM of a stream that both have ended": Flood(
        lambda: repeated(reset(1)), CONTROLS + 1, before=headers(1, END_HEADERS | END_STREAM)
    ),
    "HEADERS of a stream that the server has ended": Flood(
        lambda: repeated(headers(1)), CONTROLS + EXCUSED, before=ENDED_EARLY
    ),
    "WINDOW_UPDATE": Flood(lambda: repeated(window_update(0, 1)), 1000 + CONTROLS),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_the_connection(name: str) -> None:
    flood = FLOODS[name]
    peer = Peer(structs.replace(OPTIONS, resets_per_second=RATE, control_frames_per_second=RATE))
    peer.say(flood.before)
    passed = 0
    for piece in flood.pieces():
        peer.say(piece)
        if peer.failure() is not None:
            break
        passed += 1
        assert passed <= flood.passes, "it goes on"
    assert (peer.failure(), passed) == (flood.code, flood.passes)
    assert peer.connection.open == 0
    assert all(call.ends == 1 for call in peer.calls)


@pytest.mark.parametrize("name", [name for name in FLOODS if "CVE-2023" in name or name in ("PING", "empty DATA")])
def test_what_comes_at_the_allowed_rate_goes_on_for_ever(name: str) -> None:
    flood = FLOODS[name]
    peer = Peer(structs.replace(OPTIONS, resets_per_second=RATE, control_frames_per_second=RATE))
    peer.say(flood.before)
    for _, piece in zip(range(20 * BURST), flood.pieces(), strict=False):
        peer.now += 1.01 / RATE
        peer.say(piece)
    assert peer.failure() is None


def test_a_frame_of_many_settings_ends_the_connection() -> None:
    peer = Peer()
    peer.call("Silent")
    peer.say(frame(SETTINGS, 0, 0, b"\0\4\0\1\0\0" * 100))
    assert peer.failure() is None
    peer.say(frame(SETTINGS, 0, 0, b"\0\4\0\1\0\0" * 101))
    assert peer.failure() is CALM


def test_of_several_windows_in_a_frame_the_last_one_holds() -> None:
    peer = Peer()
    peer.call("Echo")
    peer.say(frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0" + b"\0\4\0\0\0\7"), data(1, message(b"hello")))
    assert peer.data(1) == message(b"hello")[:7]


def test_clients_that_give_up_after_a_while_may_do_so_without_limit() -> None:
    peer = Peer(structs.replace(OPTIONS, resets_per_second=RATE))
    streams = range(1, 2 * RATE * BURST * 10, 2)
    peer.say(*(headers(stream, END_HEADERS, request(path="/test.Test/Silent")) for stream in streams))
    peer.now = 1.1
    peer.say(*map(reset, streams))
    assert (peer.failure(), peer.connection.open) == (None, 0)


def test_header_blocks_of_a_turn_are_few_however_short_they_are() -> None:
    """A header that is in the table takes a byte of a block."""
    peer = Peer()
    sent = b"".join(frame(HEADERS, END_HEADERS, stream, HEAD + b"\x90" * (200 - stream)) for stream in range(1, 41, 2))
    opened = []
    more = peer.connection.receive(sent, 0.0)
    while more:
        opened.append(len(peer.calls))
        more = peer.connection.receive(b"", 0.0)
    assert len(peer.calls) == 20
    assert max(after - before for before, after in zip([0, *opened], opened, strict=False)) <= 6


def test_what_blocks_stand_for_is_remembered_up_to_a_limit() -> None:
    """A byte of a block may stand for kilobytes of the table."""
    large = b"\x40\x01a" + encode_integer(3900, 7) + b"a" * 3900
    tracemalloc.start()
    try:
        peer = Peer(methods={"/test.Test/Echo": Forgetful})
        peer.say(frame(HEADERS, END_HEADERS | END_STREAM, 1, block() + large))
        before = tracemalloc.get_traced_memory()[0]
        for stream in range(3, 67, 2):
            number = b"\x00\x01n\x02%02d" % stream
            peer.say(frame(HEADERS, END_HEADERS | END_STREAM, stream, block() + b"\xbe" * 3 + number))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert peer.connection.failure is None
    assert taken < 100_000


def test_headers_that_cannot_be_read_are_not_quoted() -> None:
    """The reason is in a line of the log, and the headers may have a credential."""
    peer = Peer()
    peer.say(frame(HEADERS, END_HEADERS, 1, b"\x00\x01n" + b"\xff" * 20 + b"secret"))
    failure = peer.connection.failure
    assert failure is not None
    assert failure.code is ErrorCode.COMPRESSION_ERROR
    assert "secret" not in failure.text


def test_streams_that_were_answered_may_be_reset_without_limit() -> None:
    peer = Peer(structs.replace(OPTIONS, resets_per_second=RATE))
    for stream in range(1, 200, 2):
        peer.say(headers(stream), data(stream, message(b"hello")), reset(stream))
    assert (peer.failure(), [call.ends for call in peer.calls]) == (None, [1] * 100)


def test_a_reset_that_crosses_the_end_of_its_stream_costs_nothing() -> None:
    """RFC 9113, section 5.1: the client doesn't know yet that the stream has ended."""
    peer = Peer(structs.replace(OPTIONS, control_frames_per_second=RATE))
    for stream in range(1, 2000, 2):
        peer.say(headers(stream, END_HEADERS | END_STREAM), reset(stream))
    assert peer.failure() is None


def test_streams_of_all_connections_together_have_a_limit() -> None:
    count = StreamCount(3)
    one, other = Peer(count=count), Peer(count=count)
    one.say(headers(1), headers(3))
    other.say(headers(1), headers(3))
    assert (one.resets(), other.resets(), other.failure()) == ({}, {3: ErrorCode.REFUSED_STREAM}, None)
    one.say(data(1, message(b"a"), END_STREAM))
    other.say(headers(5))
    assert (count.open, 5 in other.resets()) == (3, False)
    one.connection.lost()
    other.connection.lost()
    assert count.open == 0


def test_what_streams_leave_unread_counts_as_held_memory() -> None:
    """A client can leave a little unread on each of very many."""
    memory = MemoryBudget(limit=1000)
    peer = Peer(sets={INITIAL_WINDOW_SIZE: 0}, memory=memory)
    for stream in range(1, 21, 2):
        peer.say(headers(stream), data(stream, message(bytes(195))))
    kept = [stream for stream in range(1, 21, 2) if stream not in peer.resets()]
    assert (len(kept), memory.used) == (5, 1000)
    assert set(peer.resets().values()) == {CALM}
    assert peer.failure() is None
    assert [call.ends for call in peer.calls] == [0] * 5 + [1] * 5
    peer.say(window_update(kept[0], 100), reset(kept[1]))
    assert memory.used == 1000 - 100 - 200
    peer.say(*(window_update(stream, 1000) for stream in kept))
    assert memory.used == 0
    peer.say(headers(21), data(21, message(b"hello")))
    peer.connection.lost()
    assert memory.used == 0


class Forgetful:
    """A call that keeps nothing."""

    held = 0

    def __init__(self, stream: Stream, metadata: Metadata) -> None:
        pass

    def receive(self, message: bytes) -> None:
        pass

    def half_close(self) -> None:
        pass

    def drained(self) -> None:
        pass

    def end(self) -> None:
        pass


@pytest.mark.parametrize("rest", [b"", frame(PING, 0, 0, bytes(8))[:12]], ids=["whole", "begun"])
def test_of_what_was_read_nothing_stays(rest: bytes) -> None:
    """A peer can have many connections, and many streams."""
    connection = Http2Connection(
        {"/test.Test/Echo": Forgetful}, OPTIONS, MemoryBudget(), StreamCount(100), now=0.0, wake=lambda: None
    )
    heads = [headers(stream, fields=[*REQUEST, ("x", f"{stream}" * 5_000)]) for stream in range(1, 41, 2)]
    more = connection.receive(PREFACE + settings(), 0.0)
    tracemalloc.start()
    try:
        for sent in (*heads, b"".join([data(1, message(bytes(16_000)))] * 16) + rest):
            more = connection.receive(sent, 0.0)
            while more:
                more = connection.receive(b"", 0.0)
        del sent
        assert connection.open == 20
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


# What isn't complete

PART = 60_000
LONG_BLOCK = block() + b"\x00\x01x" + encode_integer(PART, 7) + b"y" * PART
PARTS = {
    "a frame, of many messages": (data(1, message(b"") * (PART // 5))[:-100], message(b"") * 20),
    "a header block": (frame(HEADERS, 0, 3, LONG_BLOCK), frame(CONTINUATION, END_HEADERS, 3)),
    "a frame of a header block": (
        frame(HEADERS, 0, 3, LONG_BLOCK[:9_000]) + frame(CONTINUATION, END_HEADERS, 3, LONG_BLOCK[9_000:])[:-100],
        LONG_BLOCK[-100:],
    ),
}


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_frames_and_header_blocks_count_as_held_memory(name: str, lost: bool) -> None:
    part, rest = PARTS[name]
    peer = Peer()
    peer.call("Silent")
    peer.say(part[:100])
    peer.connection.feed(part[100:])
    assert PART - 200 < peer.memory.used < PART + 200
    peer.say(b"")
    assert PART - 200 < peer.memory.used < PART + 200
    if lost:
        peer.connection.lost()
    else:
        peer.say(rest)
    assert (peer.memory.used, peer.connection.failure) == (0, None)


@pytest.mark.parametrize("waits", [False, True], ids=["for the rest of a frame", "for a turn"])
def test_connections_that_hold_bytes_for_long_make_room(waits: bool) -> None:
    """The costliest first; they are served for a second in any case, because all of their requests end with them."""
    now, sent = 0.0, data(1, message(bytes(PART)))
    memory = MemoryBudget(3 * PART // 2, lambda: now)
    peers = [Peer(memory=memory) for _ in range(4)]
    for peer in peers:
        peer.call("Silent")
        now += 0.3
        peer.now = now
        if waits:
            peer.connection.receive(b"", now)
            peer.connection.feed(sent)
        else:
            peer.say(sent[:-100])
    for peer in peers:
        peer.wait(now)
    assert [peer.failure() for peer in peers] == [None] * 4
    now += 1.0
    for peer in peers:
        peer.wait(now)
    assert [peer.failure() for peer in peers] == [CALM, CALM, CALM, None]
    assert [peer.wakes for peer in peers] == [1, 1, 1, 0]
    assert memory.used < PART + 200
    peers[3].say(b"" if waits else sent[-100:])
    assert (peers[3].failure(), memory.used, peers[3].calls[0].messages) == (None, 0, [bytes(PART)])


def test_a_connection_that_makes_room_is_not_counted_any_more() -> None:
    """What waits for its socket is given up with it."""
    now = 0.0
    memory = MemoryBudget(PART, lambda: now)
    peers = [Peer(memory=memory) for _ in range(2)]
    for now in (0.0, 2.0):
        for peer in peers:
            peer.connection.tick(now, PART - 5_000)
            peer.hear()
    assert [(peer.failure(), peer.connection.dropped) for peer in peers] == [(CALM, True), (None, False)]
    assert memory.used == PART - 5_000


def test_a_part_of_a_frame_that_comes_a_byte_at_a_time_takes_little_memory() -> None:
    connection = Http2Connection({}, OPTIONS, MemoryBudget(), StreamCount(100), now=0.0, wake=lambda: None)
    connection.receive(PREFACE + settings() + frame(PING, 0, 0, bytes(PART))[:9], 0.0)
    tracemalloc.start()
    try:
        for _ in range(PART - 1):
            connection.receive(b"x", 0.0)
        assert tracemalloc.get_traced_memory()[0] < 2 * PART
    finally:
        tracemalloc.stop()


# Header blocks

LONG = [("x-long", "x" * 70_000)]
MANY = [(f"x-{number}", "") for number in range(2000)]
HEAD = block(request(path="/test.Test/Silent"))
TABLED = b"\x40\x01x" + b"\x7f\xa1\x1e" + b"y" * 4000
"""Puts a header of 4 000 bytes into the table, as entry 62."""


def continued(stream: int, fragment: bytes) -> bytes:
    """A header block in two frames."""
    return frame(HEADERS, 0, stream, fragment[:40_000]) + frame(CONTINUATION, END_HEADERS, stream, fragment[40_000:])


BLOCKS: dict[str, tuple[bytes, ErrorCode]] = {
    "one header that is too long": (continued(1, block(LONG)), CALM),
    "too many headers": (frame(HEADERS, END_HEADERS, 1, block([*request(), *MANY])), CALM),
    "HPACK bomb: references to a long entry": (frame(HEADERS, END_HEADERS, 1, TABLED + b"\xbe" * 100), CALM),
    "HPACK bomb: sizes of the table": (frame(HEADERS, END_HEADERS, 1, b"\x20" * 3 + HEAD), ErrorCode.COMPRESSION_ERROR),
    "a table larger than was promised": (
        frame(HEADERS, END_HEADERS, 1, b"\x3f\xe2\x1f" + HEAD),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "an index that isn't there": (frame(HEADERS, END_HEADERS, 1, b"\xff\x00"), ErrorCode.COMPRESSION_ERROR),
    "a number of many bytes": (
        frame(HEADERS, END_HEADERS, 1, b"\x3f" + b"\x80" * 1000 + b"\0" + HEAD),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "a number without an end": (frame(HEADERS, END_HEADERS, 1, b"\xff" * 1000), ErrorCode.COMPRESSION_ERROR),
    "CONTINUATION flood": (frame(HEADERS, 0, 1, HEAD) + frame(CONTINUATION, 0, 1) * 17, CALM),
    "CONTINUATIONs that are too long together": (
        frame(HEADERS, 0, 1, HEAD) + frame(CONTINUATION, 0, 1, bytes(35_000)) * 2,
        CALM,
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_header_block_beyond_a_limit_ends_the_connection(name: str) -> None:
    sent, code = BLOCKS[name]
    peer = Peer()
    peer.say(sent)
    assert (peer.failure(), peer.calls) == (code, [])


@pytest.mark.parametrize(
    ("sent", "limits"),
    [
        (headers(1, fields=[*request(), ("x-long", "x" * 4000)]), {"max_header_list": 1000}),
        (
            frame(HEADERS, 0, 1, HEAD) + frame(CONTINUATION, 0, 1) * 2 + frame(CONTINUATION, END_HEADERS, 1),
            {"max_continuations": 2},
        ),
    ],
)
def test_the_limits_of_header_blocks_are_options(sent: bytes, limits: dict[str, int]) -> None:
    for options, code in ((OPTIONS, None), (structs.replace(OPTIONS, **limits), CALM)):
        peer = Peer(options)
        peer.say(sent)
        assert peer.failure() == code


@pytest.mark.parametrize("fields", [[("x-long", "x" * 60_000)], [(f"x-{n}", "") for n in range(1000)]])
def test_headers_beyond_the_limit_end_their_stream_alone(fields: list[tuple[str, str]]) -> None:
    """A proxy sends headers of its clients on, such as `tracestate`, and the streams of all of them on a connection."""
    peer = Peer()
    peer.say(headers(1, fields=request(path="/test.Test/Silent")))
    tabled = b"\x40\x07x-table\x01y"  # the block's last header becomes entry 62
    peer.say(continued(3, block([*request(), *fields]) + tabled))
    assert peer.status(3) == (StatusCode.RESOURCE_EXHAUSTED, "more than 16384 bytes of headers")
    peer.say(frame(HEADERS, END_HEADERS, 5, HEAD + b"\xbe"))
    assert (peer.failure(), len(peer.calls)) == (None, 2)


def test_every_option_is_a_setting() -> None:
    changed = {name: getattr(DEFAULTS, name) + 1 for name in Http2Options.__struct_fields__[1:]}
    settings: dict[str, Any] = {f"http2_{name}": value for name, value in changed.items()}
    assert PickerSettings(**settings).http2_options(7) == Http2Options(max_message_size=7, **changed)
    assert PickerSettings().http2_options(0) == DEFAULTS


def test_header_blocks_up_to_the_limits_pass() -> None:
    peer = Peer()
    pieces = [HEAD[at : at + 1] for at in range(16)] + [HEAD[16:]]
    peer.say(frame(HEADERS, 0, 1, pieces[0]), *(frame(CONTINUATION, 0, 1, piece) for piece in pieces[1:-1]))
    peer.say(frame(CONTINUATION, END_HEADERS, 1, pieces[-1]))
    peer.say(headers(3, fields=[*request(path="/test.Test/Silent"), ("x-long", "x" * 15_000)]))
    peer.say(frame(HEADERS, END_HEADERS, 5, b"\x20\x3f\xe1\x1f" + HEAD))
    assert (peer.failure(), len(peer.calls)) == (None, 3)


@pytest.mark.parametrize("size", [OPTIONS.max_frame_size, OPTIONS.max_frame_size + 1])
def test_a_frame_beyond_the_limit_ends_the_connection_before_it_has_come(size: int) -> None:
    peer = Peer()
    peer.call("Silent")
    peer.say(frame(DATA, 0, 1, bytes(size))[:9])
    assert peer.failure() == (None if size == OPTIONS.max_frame_size else ErrorCode.FRAME_SIZE_ERROR)


def test_streams_beyond_the_limit_are_refused_and_the_others_go_on() -> None:
    peer = Peer(structs.replace(OPTIONS, max_concurrent_streams=2))
    peer.say(headers(1), headers(3), headers(5), data(5, message(b"late")))
    assert (peer.resets(), peer.failure(), peer.connection.open) == ({5: ErrorCode.REFUSED_STREAM}, None, 2)
    peer.say(data(1, message(b"a"), END_STREAM))
    peer.say(headers(7), data(7, message(b"b"), END_STREAM))
    assert (peer.status(1)[0], peer.status(7)[0]) == (StatusCode.OK, StatusCode.OK)
    for stream in range(9, 3009, 2):  # a client may know the limit too late
        peer.say(headers(stream))
    assert peer.failure() is None


# Messages

BOMB = gzip.compress(bytes(5_001))
SMALL = gzip.compress(b"hello")
MESSAGES: dict[str, tuple[bytes, StatusCode]] = {
    "as long as allowed": (message(bytes(10_000)), StatusCode.OK),
    "too long, by its length alone": (message(bytes(10_001))[:5], StatusCode.RESOURCE_EXHAUSTED),
    "zipped": (message(SMALL, 1), StatusCode.OK),
    "as long as allowed when decompressed": (message(gzip.compress(bytes(5_000)), 1), StatusCode.OK),
    "too long when decompressed": (message(BOMB, 1), StatusCode.RESOURCE_EXHAUSTED),
    "zipped, and too long for what it may be, by its length alone": (
        message(bytes(6_000), 1)[:5],
        StatusCode.RESOURCE_EXHAUSTED,
    ),
    "no gzip": (message(b"hello", 1), StatusCode.RESOURCE_EXHAUSTED),
    "cut gzip": (message(SMALL[:-1], 1), StatusCode.RESOURCE_EXHAUSTED),
    "two gzip members": (message(SMALL * 2, 1), StatusCode.RESOURCE_EXHAUSTED),
    "nothing, zipped": (message(b"", 1), StatusCode.RESOURCE_EXHAUSTED),
}


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("cut", [1, 7, 100_000])
def test_a_message_beyond_a_limit_ends_its_call(name: str, cut: int) -> None:
    sent, status = MESSAGES[name]
    peer = Peer(structs.replace(OPTIONS, max_message_size=10_000, max_decompressed_size=5_000))
    peer.say(headers(1, fields=request(grpc_encoding="gzip")))
    peer.say(*(data(1, sent[at : at + cut]) for at in range(0, len(sent), cut)))
    peer.say(data(1, b"", END_STREAM))
    assert peer.status()[0] == status
    assert [len(call.messages) for call in peer.calls] == [int(status is StatusCode.OK)]
    assert (peer.calls[0].ends, peer.memory.used, peer.connection.open, peer.failure()) == (1, 0, 0, None)


def test_who_asks_for_descriptors_without_reading_them_is_ended() -> None:
    service, path = (
        "grpc.reflection.v1alpha.ServerReflection",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    )
    peer = Peer(sets={INITIAL_WINDOW_SIZE: 0}, methods=Reflection([service]).methods)
    asks = message(reflection_pb2.ServerReflectionRequest(file_containing_symbol=service).SerializeToString())
    peer.say(headers(1, fields=request(path=path)), data(1, asks * 1_000))
    peer.say(window_update(1, 2**30), window_update(0, 2**30))
    assert peer.status()[0] is StatusCode.RESOURCE_EXHAUSTED
    assert len(peer.data()) < 2 * OPTIONS.send_buffer


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after the windows have opened"])
@pytest.mark.parametrize(("size", "answers"), [(40_000, 200), (4_000_000, 2)])
def test_a_turn_writes_little_however_wide_the_windows_are(waits: bool, size: int, answers: int) -> None:

    class Large(Forgetful):
        def __init__(self, stream: Stream, metadata: Metadata) -> None:
            self.stream = stream

        def receive(self, message: bytes) -> None:
            self.stream.send(bytes(size))

    peer = Peer(sets={INITIAL_WINDOW_SIZE: 0}, methods={"/test.Test/Echo": Large})
    peer.say(headers(1))
    opens = settings({INITIAL_WINDOW_SIZE: 2**31 - 1, MAX_FRAME_SIZE: 2**24 - 1}) + window_update(0, 2**30)
    sent = data(1, message(b"") * answers)
    peer.say(sent if waits else opens)
    peer.heard.clear()
    more, turns = peer.connection.receive(opens if waits else sent, 0.0), [len(b"".join(peer.connection.out))]
    while more:
        peer.hear()
        more = peer.connection.receive(b"", 0.0)
        turns.append(len(b"".join(peer.connection.out)))
    peer.hear()
    assert peer.data() == message(bytes(size)) * answers
    assert max(turns) < 2 * OPTIONS.send_buffer


def test_a_turn_unzips_few_large_messages() -> None:
    peer = Peer(structs.replace(OPTIONS, max_message_size=3 * 2**20))
    peer.say(headers(1, fields=request(path="/test.Test/Silent", grpc_encoding="gzip")))
    bomb = message(gzip.compress(bytes(2**20)), 1)
    more = peer.connection.receive(data(1, bomb * 20), 0.0)
    assert more
    assert len(peer.calls[0].messages) <= 3
    peer.say(b"")
    assert len(peer.calls[0].messages) == 20


@pytest.mark.parametrize("sent", [data(1, message(b"x")) * 60, data(1, message(b"x") * 60)], ids=["frames", "a frame"])
def test_a_turn_ends_when_its_time_is_over(sent: bytes) -> None:
    seconds = iter(range(10**6))
    peer = Peer(timer=lambda: next(seconds) / 1000)
    call = peer.call()
    more, turns = peer.connection.receive(sent, 0.0), 1
    while more:
        more, turns = peer.connection.receive(b"", 0.0), turns + 1
    assert turns >= 60 / 5
    assert call.messages == [b"x"] * 60


def test_a_compressed_message_without_an_encoding_ends_its_call() -> None:
    peer = Peer()
    peer.call()
    peer.say(data(1, message(SMALL, 1)))
    assert peer.status()[0] is StatusCode.INTERNAL


@pytest.mark.parametrize(
    ("limit", "age", "ended"),
    [
        (910, PATIENCE + 0.1, []),
        (900, PATIENCE, []),
        (900, PATIENCE + 0.1, ["b1"]),
        (600, PATIENCE + 0.1, ["b1", "b3"]),
    ],
)
def test_where_memory_is_used_up_streams_that_are_left_unread_make_room(
    limit: int, age: float, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The costliest first, with what their calls hold, though the peer opens their windows by a byte now and then."""
    memory = MemoryBudget()
    peers = {name: Peer(memory=memory, sets={INITIAL_WINDOW_SIZE: 0}) for name in "ab"}
    for name, stream, size, held in (("a", 1, 100, 0), ("a", 3, 0, 9999), ("b", 1, 200, 1000), ("b", 3, 500, 0)):
        call = peers[name].call("Silent", stream)
        call.held = held
        if size:
            call.stream.send(bytes(size))
    for peer in peers.values():
        peer.now = age
        peer.say(window_update(1, 10))
    memory.limit = limit
    monkeypatch.setattr(unread, "_LOOKED_AT", 2)
    make_room((stream for peer in peers.values() for stream in peer.connection.unread), memory, age)
    for peer in peers.values():
        peer.hear()
    resets = {f"{name}{stream}": code for name, peer in peers.items() for stream, code in peer.resets().items()}
    assert resets == dict.fromkeys(ended, CALM)
    assert memory.used == 795 - 195 * ("b1" in ended) - 505 * ("b3" in ended)
