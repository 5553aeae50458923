"""Frames of gRPC messages: what they hold, and what is no frame."""

import gzip
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.parsers.grpc_frame import first_message
from services.picker.request import Unparsable

LIMIT = 1000


def frame(data: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(data)) + data


def read(body: bytes, encoding: str = "") -> bytes | None:
    found = first_message(body, encoding, LIMIT)
    return None if found is None else bytes(found)


@pytest.mark.parametrize("body", [frame(b"abc"), frame(b"abc") + b"more", frame(b"abc") + frame(b"de")])
def test_the_first_message_is_read_and_the_rest_left_alone(body: bytes) -> None:
    assert read(body) == b"abc"


def test_a_message_may_be_empty() -> None:
    assert read(frame(b"")) == b""


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_message_is_read_up_to_the_limit(encoding: str, compress: type[bytes]) -> None:
    assert read(frame(compress(b"x" * LIMIT), 1), encoding) == b"x" * LIMIT
    assert read(frame(compress(b"x" * (LIMIT + 1)), 1), encoding) is None


def test_a_message_that_is_compressed_otherwise_isnt_read() -> None:
    assert read(frame(b"abc", 1), "zstd") is None


@pytest.mark.parametrize(
    ("body", "encoding", "says"),
    [
        (b"", "", "invalid gRPC frame: expected at least 5 bytes for header, got 0"),
        (b"\0\0\0\0", "", "invalid gRPC frame: expected at least 5 bytes for header, got 4"),
        (
            b"\0\0\0\0\x0a12345",
            "",
            "incomplete gRPC payload: header indicates 10 bytes, but only 5 bytes are available",
        ),
        (b"\0\xff\xff\xff\xffx", "", "incomplete gRPC payload: header indicates 4294967295 bytes, but only 1 bytes"),
        (b"plain text, no frame", "", "invalid gRPC frame: its compression flag is 112; 0 or 1 is needed"),
        (frame(b"abc", 1), "", "compressed gRPC payload without a grpc-encoding: ''; gzip or deflate is needed"),
        (frame(b"abc", 1), "identity", "compressed gRPC payload without a grpc-encoding: 'identity'; gzip or"),
        (frame(b"abc", 1), "gzip", "compressed gRPC payload isn't gzip: "),
        (frame(gzip.compress(b"abc", mtime=0), 1), "deflate", "compressed gRPC payload isn't deflate: "),
        (
            frame(gzip.compress(b"abc" * 99, mtime=0)[:-9], 1),
            "gzip",
            "incomplete gRPC payload: its gzip data ends after ",
        ),
        (
            frame(gzip.compress(b"abc", mtime=0) * 2, 1),
            "gzip",
            "compressed gRPC payload: 23 bytes follow its gzip data",
        ),
        (
            frame(zlib.compress(b"abc") + b"\0", 1),
            "deflate",
            "compressed gRPC payload: 1 bytes follow its deflate data",
        ),
    ],
)
def test_what_is_no_frame_is_refused(body: bytes, encoding: str, says: str) -> None:
    with pytest.raises(Unparsable) as caught:
        first_message(body, encoding, LIMIT)
    assert str(caught.value).startswith(says), str(caught.value)


@given(data=st.binary(max_size=200), encoding=st.sampled_from(["", "gzip", "deflate", "zstd"]))
def test_any_bytes_are_read_or_refused(data: bytes, encoding: str) -> None:
    for body in (data, frame(data), frame(data, 1)):
        try:
            message = first_message(body, encoding, LIMIT)
        except Unparsable:
            continue
        assert message is None or len(message) <= LIMIT
