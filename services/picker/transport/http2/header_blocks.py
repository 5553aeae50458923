"""Header blocks: their fragments, joined and decoded (RFC 9113, section 4.3; RFC 7541).

Proxies send nearly the same headers with every request. Once they are in the table of the connection, a block is a few
bytes that mean the same until the table changes. So blocks are remembered with what was made of them.
"""

import re
from collections.abc import Callable
from typing import Generic, TypeVar

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

from services.picker.transport.http2.errors import ConnectionFailed, ErrorCode, flooded

T = TypeVar("T")
_REMEMBERED = 32
_LISTED = 32
"""Bytes that a header counts as in addition (RFC 9113, section 6.5.2)."""
_RESIZES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\0-\x7f]){3}", re.DOTALL)
"""The beginning of a block with three new sizes of the table: two are allowed (RFC 7541, section 4.2)."""
_MAX_REMEMBERED = 512
"""Bytes of a block that is remembered."""
_MAX_KEPT = 32 * 2**10
"""Bytes of memory, about, for what was made of blocks: a few bytes of one may stand for kilobytes of the table."""
_OVERHEAD = 200
"""Bytes of memory that a decoded header takes beside its own."""
_PER_HEADER = 16
"""Bytes that a header counts as in addition: one of the table takes a byte."""
REFUSED = 4
"""How often as long as the limit a block may be that is decoded nevertheless, and whose stream alone is refused: a
proxy that traces sends the `tracestate` of its client on. The table of the connection needs each block."""
_PER_TURN = 16 * 2**10
"""Bytes that are decoded before other connections have their turn; Huffman's code takes 0.6 µs for each."""


class _Table(HeaderTable):
    """A table that notes changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.changes += 1
        super().add(name, value)

    def _shrink(self) -> None:
        self.changes += 1
        super()._shrink()


class HeaderBlocks(Generic[T]):
    """The header blocks of one connection. `read` makes of a decoded block what is remembered with it. A block of more
    than `max_bytes` is `too_long`, and one of more than `REFUSED` times as many isn't decoded."""

    def __init__(self, max_bytes: int, max_continuations: int, read: Callable[[list[tuple[str, str]]], T]) -> None:
        self._limit, self._max_bytes, self._max_continuations = max_bytes, REFUSED * max_bytes, max_continuations
        self._read = read
        self.too_long = False
        """Whether the last block that was decoded is beyond the limit."""
        self._decoder = Decoder(max_header_list_size=self._max_bytes)
        self._table = self._decoder.header_table = _Table()
        self._remembered: dict[bytes, T] = {}
        self._kept = 0
        """Bytes of memory that they take."""
        self._size = 0
        """The same of the last block that was decoded."""
        self._fragments: list[bytes] = []
        self.gathered = 0
        """Bytes of a block that isn't whole."""
        self._decoded = 0
        """Bytes of this turn."""
        self.get = self._remembered.get
        """What was made of a block that came before and means the same; None for any other."""

    def begin(self, fragment: bytes) -> None:
        """The first fragment of a block that isn't whole. Raises ConnectionFailed when it is too long."""
        self.clear()
        self._take(fragment)

    def append(self, fragment: bytes) -> None:
        """The next fragment. Raises ConnectionFailed when they are too many or too long."""
        if len(self._fragments) > self._max_continuations:
            raise flooded(f"a header block has more than {self._max_continuations} CONTINUATION frames")
        self._take(fragment)

    def take(self) -> bytes:
        """The block that has been begun, and is whole now."""
        block = b"".join(self._fragments)
        self.clear()
        return block

    def clear(self) -> None:
        """Let go what has come of a block."""
        self._fragments, self.gathered = [], 0

    def _take(self, fragment: bytes) -> None:
        self._fragments.append(fragment)
        self.gathered += len(fragment)
        if self.gathered > self._max_bytes:
            raise flooded(f"a header block has more than {self._max_bytes} bytes")

    def decode(self, block: bytes) -> list[tuple[str, str]]:
        """The headers of a block, each to be decoded once and in order. Raises ConnectionFailed: after a block that
        can't be decoded, no other can."""
        if len(block) > self._max_bytes:
            raise flooded(f"a header block has more than {self._max_bytes} bytes")
        if _RESIZES.match(block):
            raise ConnectionFailed(ErrorCode.COMPRESSION_ERROR, "more than two sizes of the table")
        self._decoded += len(block)
        before = self._table.changes
        try:
            headers = list(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            raise flooded(f"headers of more than {self._max_bytes} bytes") from error
        except HPACKError as error:
            # its text may quote all of the block
            raise ConnectionFailed(ErrorCode.COMPRESSION_ERROR, f"invalid headers: {type(error).__name__}") from error
        if self._table.changes != before or _resizes(block):
            self._forget()
        self._decoded += len(headers) * _PER_HEADER
        size = sum(len(name) + len(value) for name, value in headers)
        self._size = size + _OVERHEAD * len(headers)
        self.too_long = max(size + _LISTED * len(headers), len(block)) > self._limit
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]

    def should_yield(self) -> bool:
        """Whether so much was decoded that others are to have their turn."""
        if self._decoded < _PER_TURN:
            return False
        self._decoded = 0
        return True

    def read(self, block: bytes) -> T:
        """What `read` makes of the block. Raises ConnectionFailed, and what `read` raises."""
        before = self._table.changes
        made = self._read(self.decode(block))
        if (
            self._table.changes == before
            and not self.too_long
            and len(block) <= _MAX_REMEMBERED
            and self._size <= _MAX_KEPT
            and not _resizes(block)
        ):
            if len(self._remembered) >= _REMEMBERED or self._kept + self._size > _MAX_KEPT:
                self._forget()
            self._remembered[block] = made
            self._kept += self._size
        return made

    def _forget(self) -> None:
        self._remembered.clear()
        self._kept = 0

    def __repr__(self) -> str:
        return f"<HeaderBlocks {len(self._remembered)} remembered>"


def _resizes(block: bytes) -> bool:
    """Whether a block begins with a new size of the table (RFC 7541, section 6.3)."""
    return bool(block) and block[0] & 0xE0 == 0x20
