"""How large pictures are, as their headers say."""

import json
import struct
from base64 import b64encode
from typing import Any

import pytest
from msgspec import Raw

from services.picker.parsers.media import MARKED, MAX_MEDIA, SIZED, size_of
from services.picker.request import Content
from tests.unit.services.picker.parsers.test_bad_input import outcome
from tests.unit.services.picker.parsers.test_multimodal import CHAT, MESSAGES, PICTURE, SOUND, SOURCE, TEXT, VIDEO, said

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", 1280, 720) + b"\x08\x02\x00\x00\x00"
GIF = b"GIF89a" + struct.pack("<HH", 320, 200) + b"\0" * 20
PREVIEW = b"\xff\xe1" + struct.pack(">H", 30_002) + b"\0" * 30_000
JPEG = b"\xff\xd8" + PREVIEW + b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 480, 640) + b"\x03"
LOSSY = b"RIFF\0\0\0\0WEBPVP8 " + b"\0" * 10 + struct.pack("<HH", 100, 50)
LOSSLESS = b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", 99 | 49 << 14)
EXTENDED = b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0" + (99).to_bytes(3, "little") + (49).to_bytes(3, "little")


def data_url(data: bytes) -> str:
    return "data:image/any;base64," + b64encode(data + b"\0" * 60).decode()


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (PNG, (1280, 720)),
        (GIF, (320, 200)),
        (JPEG, (640, 480)),
        (LOSSY, (100, 50)),
        (LOSSLESS, (100, 50)),
        (EXTENDED, (100, 50)),
        (b"BM", (0, 0)),
        (b"\xff\xd8\xff\xe1\xff\xff", (0, 0)),
        (b"\xff\xd8" + PREVIEW * 3 + JPEG[2:], (0, 0)),  # beyond what is looked at
        (b"", (0, 0)),
    ],
)
def test_the_size_is_in_the_header(data: bytes, size: tuple[int, int]) -> None:
    for value in ({"url": data_url(data)}, data_url(data)):
        assert size_of(Raw(json.dumps(value).encode())) == size
        assert size_of(Raw(json.dumps(value).replace("/", "\\/").encode())) == size
    source = {"type": "base64", "media_type": "image/png", "data": b64encode(data + b"\0" * 60).decode()}
    assert size_of(Raw(json.dumps(source).encode())) == size


@pytest.mark.parametrize("cut", range(0, 80, 3))
@pytest.mark.parametrize("data", [PNG, GIF, JPEG[:20], LOSSY, LOSSLESS, EXTENDED])
def test_what_is_cut_off_or_no_base64_has_no_size_and_harms_nobody(data: bytes, cut: int) -> None:
    url = data_url(data)[: 22 + cut]
    assert len(size_of(Raw(json.dumps(url).encode()))) == 2
    assert size_of(Raw(json.dumps(url[:22] + "%%%" + url[22:]).encode())) == (0, 0)


def test_pictures_of_other_places_have_no_size() -> None:
    values: tuple[Any, ...] = ({"url": "https://example.com/base64"}, None, 7, [], {"url": "file:a.png"})
    for value in values:
        assert size_of(Raw(json.dumps(value).encode())) == (0, 0)


def test_only_so_many_are_listed_and_only_so_many_are_measured() -> None:
    pictures = [{"type": "image_url", "image_url": {"url": data_url(PNG)}}] * (MAX_MEDIA + 5)
    found = outcome(CHAT, json.dumps({"model": "m", "messages": said(*pictures)}).encode())
    assert isinstance(found, Content), found
    assert len(found.media) == MAX_MEDIA
    assert [bool(item.width) for item in found.media] == [True] * SIZED + [False] * (MAX_MEDIA - SIZED)
    assert [bool(item.marker) for item in found.media] == [True] * MARKED + [False] * (MAX_MEDIA - MARKED)
    jpeg = b"\xff\xd8" + b"\xff\xe1\0\2" * 100 + JPEG[2 + len(PREVIEW) :]
    assert size_of(Raw(json.dumps(data_url(jpeg)).encode())) == (0, 0)


@pytest.mark.parametrize(
    ("path", "parts", "expected"),
    [
        (CHAT, [TEXT], []),
        (CHAT, [SOUND], []),
        (CHAT, [PICTURE, VIDEO], [(0, 0, False), (0, 0, True)]),
        (CHAT, [{"type": "image_url", "image_url": {"url": data_url(PNG)}}, TEXT], [(1280, 720, False)]),
        (MESSAGES, [SOURCE, {"type": "tool_result", "content": [SOURCE]}], [(0, 0, False)] * 2),
    ],
)
def test_the_content_lists_them_with_what_stands_for_them(path: str, parts: Any, expected: Any) -> None:
    found = outcome(path, json.dumps({"model": "m", "messages": said(*parts)}).encode())
    assert isinstance(found, Content), found
    assert [(item.width, item.height, item.video) for item in found.media] == expected
    assert all(item.marker in found.prompt for item in found.media)
