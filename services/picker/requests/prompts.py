"""The prompt of a request as bytes: what the model will read, laid out so that equal beginnings stay equal.

The bytes serve prefix affinity and size estimates, not tokenisation: roles and texts in their order, no chat template.
A message adds its bytes at the end, so a conversation that goes on has the earlier one's prompt as its prefix. Images,
sounds and other parts that aren't text stand as a short digest: equal parts are equal, and a megabyte of base64 doesn't
count as a megabyte of text.
"""

import struct
from collections.abc import Iterable
from typing import TypeAlias

import xxhash
from msgspec import Raw, Struct

Prompt: TypeAlias = str | list[str | int | list[int]]
"""A text, texts, token ids, or lists of token ids, as `prompt` and `input` are sent."""


_NULL = Raw(b"null")


class Part(Struct):
    """A part of a message's content. Only text is read; what else a part can be is kept raw."""

    text: str | None = None
    refusal: Raw = Raw()
    image_url: Raw = Raw()
    video_url: Raw = Raw()
    audio_url: Raw = Raw()
    input_audio: Raw = Raw()
    image_embeds: Raw = Raw()
    file: Raw = Raw()
    file_id: Raw = Raw()
    file_data: Raw = Raw()


class Message(Struct):
    """A chat message, or an item of a Responses input (which may be a tool's call or its output)."""

    role: str | None = None
    content: str | list[str | Part] | None = None
    tool_calls: Raw = Raw()
    name: Raw = Raw()
    arguments: Raw = Raw()
    output: Raw = Raw()
    summary: Raw = Raw()


def front(*fields: Raw) -> bytes:
    """What a chat template puts before the messages: tools, documents. The JSON as it was sent; null is nothing."""
    return b"".join(bytes(field) + b"\n" for field in fields if _given(field))


def dialogue(messages: Iterable[Message]) -> bytes:
    """Messages one after another, each as role, content and calls."""
    pieces: list[bytes] = []
    for message in messages:
        pieces.append((message.role or "").encode())
        pieces.append(b"\n")
        content = message.content
        if isinstance(content, str):
            pieces.append(content.encode())
        elif content is not None:
            pieces.append(b"\n".join([one.encode() if isinstance(one, str) else _part(one) for one in content]))
        for field in (message.tool_calls, message.name, message.arguments, message.output, message.summary):
            if _given(field):
                pieces.append(bytes(field))
        pieces.append(b"\n")
    return b"".join(pieces)


def plain(prompt: Prompt) -> bytes:
    """A prompt that isn't a dialogue. Several ones follow each other; token ids are 4 bytes each, little-endian.

    Raises ValueError for a list that mixes kinds, and for numbers that are no token ids.
    """
    if isinstance(prompt, str):
        return prompt.encode()
    kinds = {type(one) for one in prompt}
    if len(kinds) > 1:
        raise ValueError("a list that mixes texts, token ids and lists; one kind is needed")
    if str in kinds:
        return b"\n".join([one.encode() for one in prompt if isinstance(one, str)])
    if int in kinds:
        return _ids([one for one in prompt if isinstance(one, int)])
    return b"".join([_ids(one) for one in prompt if isinstance(one, list)])


def _ids(ids: list[int]) -> bytes:
    try:
        return struct.pack(f"<{len(ids)}I", *ids)
    except struct.error as error:
        wrong = next(one for one in ids if not 0 <= one < 2**32)
        raise ValueError(f"{str(wrong)[:20]} is no token id; a whole number from 0 to 4294967295 is needed") from error


def _part(part: Part) -> bytes:
    if part.text is not None:
        return part.text.encode()
    for name in Part.__struct_fields__[1:]:
        value: Raw = getattr(part, name)
        if _given(value):
            return f"<{name} {xxhash.xxh3_64_hexdigest(value)}>".encode()
    return b""


def _given(field: Raw) -> bool:
    return len(memoryview(field)) > 0 and field != _NULL
