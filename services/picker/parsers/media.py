"""Pictures and videos of a prompt: what stands for each in the prompt's bytes, and how large a picture is.

The size of a picture is read only where the request holds the picture itself, in base64, and only from its header.
"""

import re
from base64 import b64decode
from binascii import Error
from collections.abc import Iterable
from itertools import islice
from struct import error as TooShort
from struct import unpack_from

from msgspec import Raw

from services.picker.parsers.prompts import digest_of
from services.picker.request import Media

MAX_MEDIA = 1_000
MARKED = 100
SIZED = 32
_BASE64 = re.compile(rb'base64,|"data"\s*:\s*"')
_HEADER_SEEN = 256
"""Bytes of a part before its base64."""
_SEEN = 64 * 2**10
"""Bytes of base64 that are decoded: a JPEG's size may stand behind a preview."""
_SHORT = 64
"""Bytes that suffice for the other formats."""
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of the segments with the size (SOF)."""
_PICTURE, _VIDEO = Media(), Media(video=True)
_SEGMENTS = 64
"""Segments of a JPEG that are looked at."""


def media_of(found: Iterable[tuple[str, Raw]]) -> tuple[Media, ...]:
    """The parts of messages that are pictures or videos, each with its key. What is beyond `MAX_MEDIA` isn't listed,
    and a picture beyond `SIZED` has no size: reading them all could take long. Those beyond `MARKED` have no markers,
    because they would take much memory, and count where the last one with a marker stands."""
    listed: list[Media] = []
    for name, value in islice(found, MAX_MEDIA):
        video = "video" in name
        if len(listed) >= MARKED:
            listed.append(_VIDEO if video else _PICTURE)
            continue
        width, height = size_of(value) if not video and len(listed) < SIZED else (0, 0)
        listed.append(Media(digest_of(name, value), width, height, video))
    return tuple(listed)


def size_of(value: Raw) -> tuple[int, int]:
    """Width and height of the picture that a JSON value holds, in pixels; (0, 0) if they can't be read."""
    view = memoryview(value)
    found = _BASE64.search(bytes(view[:_HEADER_SEEN]))
    if found is None:
        return 0, 0
    data = _decoded(view, found.end(), _SHORT)
    if data.startswith(b"\xff\xd8"):
        data = _decoded(view, found.end(), _SEEN)
    try:
        return _size(data)
    except (TooShort, IndexError):
        return 0, 0


def _decoded(view: memoryview, start: int, limit: int) -> bytes:
    text = bytes(view[start : start + limit]).partition(b'"')[0].replace(b"\\/", b"/")
    try:
        return b64decode(text[: len(text) // 4 * 4])
    except (Error, ValueError):
        return b""


def _size(data: bytes) -> tuple[int, int]:
    if data.startswith(b"\x89PNG"):
        return _pair(unpack_from(">II", data, 16))
    if data.startswith(b"GIF8"):
        return _pair(unpack_from("<HH", data, 6))
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data)
    at = 2
    for _ in range(_SEGMENTS if data.startswith(b"\xff\xd8") else 0):
        if data[at] != 0xFF:
            break
        if data[at + 1] in _JPEG_SIZES:
            height, width = unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + max(unpack_from(">H", data, at + 2)[0], 2)
    return 0, 0


def _webp(data: bytes) -> tuple[int, int]:
    """Lossy, lossless and extended files (RFC 9649)."""
    kind = data[12:16]
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L":
        bits = unpack_from("<I", data, 21)[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


def _pair(numbers: tuple[int, ...]) -> tuple[int, int]:
    return numbers[0], numbers[1]
