"""What `vllmhttp-parser` reads of requests in token ids."""

import json
from typing import Any

import pytest

from services.picker.parsers.vllm_http import VllmHttpParser
from services.picker.request import Content, Headers, Unparsable

PARSER = VllmHttpParser("vllmhttp-parser")


def parse(body: Any) -> Content:
    return PARSER.parse(
        "/inference/v1/generate", Headers(), body if isinstance(body, bytes) else json.dumps(body).encode()
    )


def pictured(ids: list[int], hashes: list[Any], ranges: list[tuple[int, int]]) -> bytes:
    placeholders = [{"offset": offset, "length": length} for offset, length in ranges]
    features = {"mm_hashes": {"image": hashes}, "mm_placeholders": {"image": placeholders}, "kwargs_data": None}
    return parse({"token_ids": ids, "features": features}).prompt


def test_what_is_known_of_a_request() -> None:
    body = {
        "request_id": "r",
        "model": "base",
        "token_ids": [1, 258],
        "sampling_params": {"max_tokens": 64, "n": 2, "temperature": 0.8},
        "stream": True,
        "cache_salt": "tenant",
        "features": None,
    }
    assert parse(body) == Content(
        api="generate",
        model="base",
        takes_model=True,
        stream=True,
        prompt=b"\x01\0\0\0\x02\x01\0\0",
        prompt_tokens=2,
        parallel=2,
        cache_salt="tenant",
        output_limit=64,
    )


@pytest.mark.parametrize("sampling", [{}, {"sampling_params": None}, {"sampling_params": {"temperature": 1}}])
def test_only_the_ids_have_to_be_there(sampling: dict[str, Any]) -> None:
    found = parse({"token_ids": [1], **sampling})
    assert (found.model, found.takes_model, found.output_limit, found.parallel) == ("", True, None, 1)


def test_pictures_make_equal_ids_differ_from_where_they_stand() -> None:
    ids = [1, 9, 9, 9, 2]
    first, other = pictured(ids, ["cat"], [(1, 3)]), pictured(ids, ["dog"], [(1, 3)])
    assert first[:4] == other[:4]
    assert first[4:8] != other[4:8]
    assert first[16:] == other[16:] == b"\x02\0\0\0"
    assert len(first) == len(other) == 20


def test_a_picture_is_the_same_in_a_conversation_that_goes_on() -> None:
    ids, more = [1, 9, 9, 2], [3, 9, 4]
    first = pictured(ids, ["cat"], [(1, 2)])
    assert pictured(ids + more, ["cat", "dog"], [(1, 2), (5, 1)]).startswith(first)


@pytest.mark.parametrize(
    ("hashes", "ranges"),
    [
        ([None], [(1, 2)]),
        ([""], [(1, 2)]),
        ([], [(1, 2)]),
        (["cat"], []),
        (["cat"], [(4, 2)]),
        (["cat"], [(-3, 2)]),
        (["cat"], [(1, 0)]),
        (["cat"], [(2, -1)]),
    ],
)
def test_a_placeholder_without_a_hash_or_a_place_changes_nothing(hashes: list[Any], ranges: list[Any]) -> None:
    assert pictured([1, 9, 9, 2], hashes, ranges) == parse({"token_ids": [1, 9, 9, 2]}).prompt


def test_of_placeholders_that_overlap_the_first_one_counts() -> None:
    ids = [9] * 6
    assert pictured(ids, ["cat", "dog"], [(0, 4), (2, 4)]) == pictured(ids, ["cat"], [(0, 4)])
    assert pictured(ids, ["dog", "cat"], [(4, 10**30), (0, 4)]) == pictured(ids, ["cat", "dog"], [(0, 4), (4, 2)])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the body is empty"),
        ({}, "token_ids: missing; a non-empty list of token ids is needed"),
        ({"token_ids": []}, "token_ids: empty; a non-empty list of token ids is needed"),
        ({"token_ids": "1"}, 'token_ids: expected array | null, got str: "1"'),
        ({"token_ids": [1, "2"]}, 'token_ids[1]: expected int, got str: "2"'),
        ({"token_ids": [1, -1]}, "token_ids: -1 is no token id; a whole number from 0 to 4294967295 is needed"),
        ({"token_ids": [1], "sampling_params": []}, "sampling_params: expected object | null, got array: []"),
        ({"token_ids": [1], "features": {"mm_hashes": []}}, "features.mm_hashes: expected object | null, got array"),
        ({"token_ids": [1], "model": 5}, "model: not a string: 5"),
    ],
)
def test_a_body_that_the_server_would_refuse_is_refused(body: Any, says: str) -> None:
    with pytest.raises(Unparsable) as caught:
        parse(body)
    assert str(caught.value).startswith(says), str(caught.value)


def test_features_of_older_servers_are_a_text() -> None:
    assert parse({"token_ids": [1], "features": "opaque"}).prompt == b"\x01\0\0\0"
