"""Which requests have pictures, sounds or videos."""

import json
from typing import Any

import pytest

from services.picker.request import Content
from tests.unit.services.picker.parsers.test_bad_input import outcome

CHAT, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/responses", "/v1/completions"
MESSAGES, GENERATE = "/v1/messages", "/inference/v1/generate"
TEXT = {"type": "text", "text": 'an "image_url" in words'}
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
VIDEO = {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}
SOURCE = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}


def said(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "hello"}, {"role": "user", "content": list(parts)}]


def result(*parts: Any) -> dict[str, Any]:
    return {"type": "tool_result", "content": list(parts)}


@pytest.mark.parametrize(
    ("path", "field", "value", "expected"),
    [
        (CHAT, "messages", said(TEXT), False),
        (CHAT, "messages", said(TEXT, PICTURE), True),
        (CHAT, "messages", said(SOUND), True),
        (CHAT, "messages", said(VIDEO), True),
        (CHAT, "messages", said({"type": "image_url", "image_url": None}), False),
        (CHAT, "messages", said({"type": "file", "file": {"file_id": "f"}}), False),
        (RESPONSES, "input", "hello", False),
        (RESPONSES, "input", said({"type": "input_image", "image_url": "https://example.com/a.png"}), True),
        (COMPLETIONS, "prompt", 'an "image_url" in words', False),
        (MESSAGES, "messages", said(TEXT), False),
        (MESSAGES, "messages", said(SOURCE), True),
        (MESSAGES, "messages", said(result(TEXT)), False),
        (MESSAGES, "messages", said(result(TEXT, SOURCE)), True),
        (GENERATE, "token_ids", [1, 2], False),
    ],
)
def test_what_isnt_text(path: str, field: str, value: Any, expected: bool) -> None:
    found = outcome(path, json.dumps({"model": "m", field: value}).encode())
    assert isinstance(found, Content), found
    assert found.multimodal is expected


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (None, False),
        ("text", False),
        ({}, False),
        ({"mm_placeholders": {}}, False),
        ({"mm_hashes": {"image": ["h"]}, "mm_placeholders": {"image": [{"offset": 0, "length": 1}]}}, True),
    ],
)
def test_placeholders_among_token_ids(features: Any, expected: bool) -> None:
    found = outcome(GENERATE, json.dumps({"model": "m", "token_ids": [1, 2], "features": features}).encode())
    assert isinstance(found, Content), found
    assert found.multimodal is expected


@pytest.mark.parametrize(("part", "expected"), [(PICTURE, True), ({"type": "text", "text": "hi"}, False)])
def test_a_body_that_takes_too_long_to_decode_is_judged_by_its_beginning(part: Any, expected: bool) -> None:
    turns = said(part) + [{"role": "user", "content": "hello"}] * 20_000
    found = outcome(CHAT, json.dumps({"model": "m", "messages": turns}).encode())
    assert isinstance(found, Content), found
    assert found.multimodal is expected
