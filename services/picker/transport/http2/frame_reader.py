"""Cuts what a client sends into frames (RFC 9113, sections 3.4 and 4.1)."""

from typing import TypeAlias

from services.picker.transport.http2 import frames
from services.picker.transport.http2.errors import ConnectionFailed, ErrorCode, violated
from services.picker.transport.http2.frames import HEAD, HEAD_SIZE

Frame: TypeAlias = tuple[int, int, int, bytes]
"""Type, flags, stream, payload."""
_KEPT = 4096
"""Bytes that were read and may stay until further ones come."""
_SHORT = 4096
"""Bytes of a piece that is joined with the next one: each piece takes a hundred bytes besides."""
_BEGINNING = len(frames.PREFACE) + HEAD_SIZE


class FrameReader:
    """The bytes of one connection. Nothing of a frame that is too long is kept, and long pieces are joined once."""

    def __init__(self, most: int) -> None:
        self._most = most
        """Bytes of a payload."""
        self._data = b""
        self._at = 0
        """Where the next frame begins."""
        self._more: list[bytes] = []
        """What came since, in pieces."""
        self.have, self._need = 0, _BEGINNING
        """Bytes that aren't read, from `_at` on, and how many it takes to go on."""
        self.greeted = False
        """Whether the preface has come."""

    def feed(self, data: bytes) -> None:
        """Further bytes."""
        if self.have:
            more = self._more
            if more and len(more[-1]) < _SHORT:
                more[-1] += data
            else:
                more.append(data)
            self.have += len(data)
        else:
            self._data, self._at, self.have = data, 0, len(data)

    def read(self) -> Frame | None:
        """The next frame; None when it isn't complete. Raises ConnectionFailed for one that is too long, and for what
        isn't HTTP/2."""
        if self.have < self._need:
            if not self.greeted:
                self._check_preface()
            if self._at > _KEPT:
                self._join()
            return None
        if self._more:
            self._join()
        if not self.greeted:
            self._check_preface()
            self._begin()
        at = self._at
        high, low, kind, flags, stream_id = HEAD.unpack_from(self._data, at)
        size = high << 16 | low
        if size > self._most:
            raise ConnectionFailed(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes; the limit is {self._most}")
        if self.have < HEAD_SIZE + size:
            self._need = HEAD_SIZE + size
            if self._at > _KEPT:
                self._join()
            return None
        start = at + HEAD_SIZE
        self._at = start + size
        self.have -= HEAD_SIZE + size
        self._need = HEAD_SIZE
        return kind, flags, stream_id & frames.STREAM_ID, self._data[start : self._at]

    @property
    def complete(self) -> bool:
        """Whether there may be a further frame without further bytes."""
        return self.have >= self._need

    def clear(self) -> None:
        """Let go what there is."""
        self._data, self._more, self.have = b"", [], 0

    def _join(self) -> None:
        self._data = b"".join((self._data[self._at :], *self._more))
        self._at, self._more = 0, []

    def _check_preface(self) -> None:
        """What has come of it is to be the beginning of it, at once: a client of another protocol may wait."""
        self._join()
        if self._data[: len(frames.PREFACE)] != frames.PREFACE[: len(self._data)]:
            raise violated("this port speaks gRPC over HTTP/2 alone, with prior knowledge or by ALPN")

    def _begin(self) -> None:
        kind, flags = self._data[len(frames.PREFACE) + 3], self._data[len(frames.PREFACE) + 4]
        if kind != frames.SETTINGS or flags & frames.ACK:
            raise violated("the first frame isn't SETTINGS")
        self.greeted = True
        self._at = len(frames.PREFACE)
        self.have -= len(frames.PREFACE)

    def __repr__(self) -> str:
        return f"<FrameReader {self.have} of {self._need} bytes>"
