"""Token counts as servers spell them."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from services.picker.responses.usage import NOTHING, Usage, read_usage


def sent(report: Any) -> Raw:
    return Raw(msgspec.json.encode(report))


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}, Usage(7, 3, None)),
        ({"input_tokens": 7, "output_tokens": 3}, Usage(7, 3, None)),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(9, None, 4)),
        ({"prompt_tokens": 9, "prompt_token_details": {"cached_tokens": 4}}, Usage(9, None, 4)),
        ({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}}, Usage(9, None, 4)),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, Usage(9, None, None)),
        (
            {"input_tokens": 2, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 8, "output_tokens": 1},
            Usage(40, 1, 30),
        ),
        ({"input_tokens": 2, "cache_read_input_tokens": None}, Usage(2, None, 0)),
        ({"completion_tokens": 3.0}, Usage(None, 3, None)),
    ],
)
def test_the_spellings_of_the_apis(raw: dict[str, Any], usage: Usage) -> None:
    assert read_usage(sent(raw)) == usage


@pytest.mark.parametrize("raw", ["x", 7, None, [], {}, {"prompt_tokens": "7"}, {"prompt_tokens": True}])
def test_what_isnt_a_count_says_nothing(raw: Any) -> None:
    assert read_usage(sent(raw)) == NOTHING


@pytest.mark.parametrize("count", [-1, 1.5, 1e300, 2**60])
def test_a_number_that_no_request_can_take_says_nothing(count: float) -> None:
    assert read_usage(sent({"prompt_tokens": count, "completion_tokens": 1})) == Usage(None, 1, None)


@pytest.mark.parametrize("text", [b"1e308", b"1E2", b"7" * 21, b"-7", b"7." + b"0" * 40])
def test_a_count_that_takes_long_to_decode_says_nothing(text: bytes) -> None:
    """Thousands may come at once."""
    assert read_usage(Raw(b'{"x":[1e308],"prompt_tokens":%s,"completion_tokens":1}' % text)) == Usage(None, 1, None)


def test_a_later_report_replaces_only_what_it_says() -> None:
    assert Usage(7, 1, 2).merged(Usage(None, 5, None)) == Usage(7, 5, 2)
