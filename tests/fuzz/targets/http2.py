"""What must hold of an HTTP/2 connection, whatever its client says: nothing is raised, the answers are HTTP/2 and the
same however the bytes are cut, their size and what is held are in proportion, and in the end nothing of it is left.

An input is a sequence of frames, with lines of two dashes between them: each its bytes, or a JSON object that stands
for one, such as `{"kind": 1, "flags": 5, "stream": 1, "headers": [[":path", "/test.Test/Echo"]]}`. Instead of headers
it may have a gRPC message (`"message": "hi"`, with `"gzip": true` a compressed one) or a payload (`"hex": "00ff"`), and
`times` repeats it. `{"wait": 60}` lets seconds pass; `{"hold": true}` fills the server's socket, and `false` empties
it; `{"drain": true}` is the last warning of a server that stops. The client has said the preface, unless the input
begins with it.
"""

import gzip
import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from hpack import Encoder
from msgspec import structs
from structlog.testing import capture_logs

from tests.fuzz import sequences
from tests.unit.services.picker.transport.http2.peer import (
    END_STREAM,
    GOAWAY,
    HEADERS,
    OPTIONS,
    PREFACE,
    RST_STREAM,
    Peer,
    frame,
    message,
)

LIMITS = structs.replace(OPTIONS, max_message_size=5_000, max_decompressed_size=5_000, max_concurrent_streams=20)
MAX_BYTES = 100_000
"""Of all frames of an input."""
CUT_FINELY = 4_000
"""Bytes up to which they also come one by one."""
GROWTH = 200
"""Bytes of answers, also while they wait, for each byte of the client: 35 of a compressed message may be an echo of
5 000."""
END = 10_000.0
"""Seconds after which every connection that doesn't speak has ended."""

Step = bytes | Callable[[Peer], object]


def check(data: bytes) -> None:
    """Raises AssertionError, or what the connection let out, for an input that shows a fault."""
    steps = _steps(data)
    greets = not data.startswith(PREFACE[:3])
    with capture_logs():
        whole = _converse(steps, greets, MAX_BYTES)
        for cut in (7, 1):
            if sum(len(step) for step in steps if isinstance(step, bytes)) <= CUT_FINELY * cut:
                assert _converse(steps, greets, cut).heard == whole.heard
    _check_frames(whole)


def _converse(steps: Sequence[Step], greets: bool, cut: int) -> Peer:
    peer = Peer(LIMITS, greets=greets)
    peer.hear()
    sent = 0
    for step in steps:
        if isinstance(step, bytes):
            sent += len(step)
            for at in range(0, len(step), cut):
                peer.say(step[at : at + cut])
        else:
            step(peer)
            peer.hear()
        assert peer.memory.used <= GROWTH * sent
    for seconds in (10.0, 60.0, 100.0, END, END):
        peer.wait(peer.now + seconds)
    heard = sum(len(frame.payload) for frame in peer.heard)
    assert heard <= 1_000 + GROWTH * sent, (heard, sent)
    assert peer.failure() is not None
    assert not peer.say(b"anything")
    _check_left(peer)
    return peer


def _check_left(peer: Peer) -> None:
    while peer.connection.lost():
        pass
    assert (peer.connection.open, peer.memory.used, peer.hear()) == (0, 0, [])
    assert all(call.ends == 1 for call in peer.calls), [call.ends for call in peer.calls]


def _check_frames(peer: Peer) -> None:
    """What the server has said is HTTP/2."""
    begun, ended = set[int](), set[int]()
    for heard_frame in peer.heard:
        if heard_frame.stream:
            assert heard_frame.stream % 2 == 1
            assert heard_frame.stream not in ended or heard_frame.kind == RST_STREAM, heard_frame
        if heard_frame.kind == HEADERS:
            fields = peer.decode(heard_frame)
            assert (":status" in fields) is (heard_frame.stream not in begun), heard_frame
            assert heard_frame.stream not in begun or (heard_frame.flags & END_STREAM and "grpc-status" in fields), (
                heard_frame
            )
            begun.add(heard_frame.stream)
        if heard_frame.kind == RST_STREAM or (heard_frame.stream and heard_frame.flags & END_STREAM):
            ended.add(heard_frame.stream)
    last = [heard_frame.number for heard_frame in peer.heard if heard_frame.kind == GOAWAY]
    assert all(before >= after for before, after in pairwise(last)), last


def _steps(data: bytes) -> list[Step]:
    steps: list[Step] = []
    encoder, room = Encoder(), MAX_BYTES
    for part in sequences.parts(data):
        step = _step(part, encoder)
        if isinstance(step, bytes):
            step = step[:room]
            room -= len(step)
        steps.append(step)
    return steps


def _step(part: bytes, encoder: Encoder) -> Step:
    """What a part of an input stands for."""
    try:
        step = sequences.value(part)
        if "wait" in step:
            seconds = min(float(step["wait"]), END)
            return lambda peer: peer.wait(peer.now + (seconds if seconds > 0 else 0.0))
        if "hold" in step:
            return lambda peer: peer.connection.hold() if step["hold"] else peer.connection.release()
        if "drain" in step:
            return lambda peer: peer.connection.drain(last=bool(step["drain"]))
        made = frame(step["kind"], step.get("flags", 0), step.get("stream", 0), _payload(step, encoder))
        return made * min(int(step.get("times", 1)), MAX_BYTES // len(made))
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError, struct.error):
        return part


def _payload(fields: dict[str, Any], encoder: Encoder) -> bytes:
    if "headers" in fields:
        return encoder.encode([(str(name), str(value)) for name, value in fields["headers"]])
    if "message" in fields:
        content = str(fields["message"]).encode("utf-8", "replace") * min(int(fields.get("long", 1)), MAX_BYTES)
        return message(gzip.compress(content, mtime=0), 1) if fields.get("gzip") else message(content)
    return bytes.fromhex(fields.get("hex", ""))
