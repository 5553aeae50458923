"""Lays out the prompt of a request as bytes, so that equal beginnings stay equal.

The bytes serve prefix affinity and size estimates, not tokenisation: roles and texts in their order, no chat template.
A message adds its bytes at the end, so the prompt of a continued conversation begins with the earlier prompt. A short
digest stands for images, sounds and other parts that aren't text: equal parts are equal, and a megabyte of base64
doesn't count as a megabyte of text.
"""

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TypeAlias, cast

import xxhash
from msgspec import Raw, Struct

from services.picker.parsers.json_counts import MAX_DECODED, JsonCounts
from services.picker.parsers.json_edit import start_of
from services.picker.parsers.json_values import NOTHING, given

_ID_BYTES = 4
TOKEN_BYTES = 4
"""Of a text, as estimates have it."""
_BLOCK = 16 * 2**10
"""Bytes: each string that is longer than two of these has one of them to itself."""
_DATA = re.compile(rb"[A-Za-z0-9+/=_-]*")
_DATA_SEEN = 1024
"""Bytes of a string that tell whether it is data, in base64, rather than text."""
_LIST_SEEN = 64
"""Bytes of a list that tell what is in it."""
_LIST_OF = re.compile(rb"\[[ \t\r\n]*(?P<first>[-0-9\[\"])")


class Prompt(Struct, frozen=True):
    """A request's prompt, or all of its prompts one after the other."""

    text: bytes = b""
    tokens: int | None = None
    """How many, where they are counted."""
    count: int = 1
    """Prompts that the request has."""


class Part(Struct):
    """A part of a message's content. Only text is read; what else a part can be is kept raw."""

    text: str | None = None
    refusal: Raw = NOTHING
    image_url: Raw = NOTHING
    video_url: Raw = NOTHING
    audio_url: Raw = NOTHING
    input_audio: Raw = NOTHING
    image_embeds: Raw = NOTHING
    audio_embeds: Raw = NOTHING
    image: Raw = NOTHING
    video: Raw = NOTHING
    audio: Raw = NOTHING
    file: Raw = NOTHING
    file_id: Raw = NOTHING
    file_data: Raw = NOTHING


_MEDIA = (
    *("image_url", "video_url", "audio_url", "input_audio"),
    *("image_embeds", "audio_embeds", "image", "video", "audio"),
)
"""What of it has to be encoded before a model reads it."""
MEDIA_KEYS = tuple(f'"{name}"'.encode() for name in _MEDIA)
_media_of = attrgetter(*_MEDIA)
_NO_PART = Part()
_OTHER_PARTS = Part.__struct_fields__[1:]


class Message(Struct):
    """A chat message, or an item of a Responses input (which may be a tool's call or its output)."""

    role: str | None = None
    content: str | list[str | Part] | None = None
    tool_calls: Raw = NOTHING
    name: Raw = NOTHING
    arguments: Raw = NOTHING
    output: Raw = NOTHING
    summary: Raw = NOTHING


TextOrIds: TypeAlias = str | list[str | int | list[int]]
"""A text, texts, token ids, or lists of token ids, as `prompt` is sent."""
Embeddable: TypeAlias = str | list[str | int | list[int] | Part]
"""The same, or texts with pictures, as `input` of embeddings is sent."""


class Placeholder(Struct, frozen=True):
    """Where an item that isn't text stands among token ids: the same ids whatever it shows, so its hash tells."""

    offset: int
    length: int
    hash: bytes
    """The server's own name for the item's content; empty when there is none."""


def has_media(messages: str | Iterable[Message | str] | None) -> bool:
    """Whether any message has pictures, sounds or videos."""
    return next(media_in(messages), None) is not None


def media_in(messages: str | Iterable[Message | str] | None) -> Iterator[tuple[str, Raw]]:
    """Pictures, sounds and videos in their order, each with the key that it has."""
    for message in messages or ():
        if isinstance(message, Message) and isinstance(message.content, list):
            for part in message.content:
                if isinstance(part, Part) and part.text is None:
                    values = zip(_MEDIA, _media_of(part), strict=True)
                    yield from ((name, value) for name, value in values if value is not NOTHING and given(value))


def front(*fields: Raw) -> bytes:
    """What a chat template puts before the messages: tools, documents. The JSON as it was sent; null is nothing."""
    return b"".join([bytes(field) + b"\n" for field in fields if field is not NOTHING and given(field)])


def dialogue(messages: Iterable[Message | str]) -> bytes:
    """Messages one after another, each as role, content and calls. A mere text is the user's."""
    pieces: list[bytes] = []
    for message in messages:
        if isinstance(message, str):
            pieces += (b"user\n", message.encode(), b"\n")
            continue
        pieces += ((message.role or "").encode(), b"\n")
        content = message.content
        if isinstance(content, str):
            pieces.append(content.encode())
        elif content is not None:
            pieces.append(b"\n".join([part.encode() if isinstance(part, str) else part_of(part) for part in content]))
        for field in (message.tool_calls, message.name, message.arguments, message.output, message.summary):
            if field is not NOTHING and given(field):
                pieces.append(bytes(field))
        pieces.append(b"\n")
    return b"".join(pieces)


def plain(prompt: TextOrIds | Embeddable) -> Prompt:
    """A prompt that isn't a dialogue. Several ones follow each other; token ids are 4 bytes each, little-endian.

    Raises ValueError for a list that mixes kinds, and for numbers that are no token ids.
    """
    if isinstance(prompt, str):
        return Prompt(prompt.encode())
    kinds = set(map(type, prompt))
    if len(kinds) > 1:
        raise ValueError("a list that mixes texts, token ids and lists; one kind is needed")
    if str in kinds:
        return Prompt(b"\n".join([text.encode() for text in cast(list[str], prompt)]), count=len(prompt))
    if Part in kinds:
        return Prompt(b"\n".join([part_of(part) for part in cast(list[Part], prompt)]), count=len(prompt))
    if int in kinds:
        return Prompt(pack(cast(list[int], prompt)), len(prompt))
    lists = cast(list[list[int]], prompt)
    return Prompt(b"".join([pack(ids) for ids in lists]), sum(map(len, lists)), len(lists))


def packed_ids(ids: bytes, placeholders: Iterable[Placeholder] = ()) -> Prompt:
    """A prompt of token ids that are 4 bytes each, little-endian; a placeholder's bytes are made from its item's hash.

    Of placeholders that overlap the first one counts, and what is beyond the ids doesn't.
    """
    pieces: list[bytes] = []
    free = 0
    for item in sorted(placeholders, key=attrgetter("offset")):
        start, end = item.offset * _ID_BYTES, min((item.offset + item.length) * _ID_BYTES, len(ids))
        if not item.hash or start < free or start >= end:
            continue
        digest = xxhash.xxh3_64_digest(item.hash)
        pieces += (ids[free:start], (digest * ((end - start) // len(digest) + 1))[: end - start])
        free = end
    return Prompt(b"".join((*pieces, ids[free:])) if pieces else ids, len(ids) // _ID_BYTES)


def pack(ids: Sequence[int]) -> bytes:
    """Token ids, 4 bytes each, little-endian. Raises ValueError for numbers that are none."""
    try:
        return struct.pack(f"<{len(ids)}I", *ids)
    except struct.error as error:
        wrong = next(number for number in ids if not 0 <= number < 2**32)
        raise ValueError(f"{str(wrong)[:20]} is no token id; a whole number from 0 to 4294967295 is needed") from error


def part_of(part: Part) -> bytes:
    """A part of a message: its text, or the digest of what else it is."""
    if part.text is not None:
        return part.text.encode()
    if part != _NO_PART:
        for name in _OTHER_PARTS:
            value: Raw = getattr(part, name)
            if value is not NOTHING and given(value):
                return digest_of(name, value)
    return b""


def digest_of(name: str, value: Raw | memoryview) -> bytes:
    """What stands for a value that is no text."""
    return f"<{name} {xxhash.xxh3_64_hexdigest(value)}>".encode()


def undecoded(body: bytes, fields: Iterable[tuple[Raw, bool]]) -> Prompt:
    """A prompt as the JSON text of the fields of a body that hold it, each with whether that may be token ids or
    several prompts: equal beginnings stay equal, and nothing is decoded. It has at most `MAX_DECODED` bytes.

    Strings of base64 stand as a digest. Token ids are counted, and prompts by their commas unless they have pictures.
    """
    pieces: list[bytes] = []
    tokens, count, size = None, 1, 0
    for field, plain in fields:
        if field is NOTHING or not given(field):
            continue
        start = start_of(field, body)
        end = start + len(memoryview(field))
        if plain and (found := _LIST_OF.match(body, start, min(end, start + _LIST_SEEN))) is not None:
            counts = JsonCounts(body, start, end)
            if found["first"] == b'"':
                count = min(counts.commas + 1, counts.quotes // 2)
            else:
                tokens, count = counts.commas + 1, max(counts.openings - 1, 1)
        for begin, stop in (*_data_in(body, start, end), (end, end)):
            pieces.append(body[start : min(begin, start + max(MAX_DECODED - size, 0))])
            size += begin - start
            if stop > begin:
                pieces.append(digest_of("data", memoryview(body)[begin:stop]))
            start = stop
        pieces.append(b"\n")
    if size > MAX_DECODED and tokens is None:
        tokens = size // TOKEN_BYTES
    return Prompt(b"".join(pieces), tokens, count)


def _data_in(body: bytes, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Where the long strings of base64 in a JSON text begin and end."""
    first = at
    while at + _BLOCK <= end:
        if body.find(b'"', at, at + _BLOCK) >= 0:
            at += _BLOCK
            continue
        start, stop = max(body.rfind(b'"', first, at) + 1, first), body.find(b'"', at, end)
        if stop < 0:
            break
        if _DATA.fullmatch(body, max(start, stop - _DATA_SEEN), stop):
            yield start, stop
        first = at = stop
