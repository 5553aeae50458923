"""What the API reads."""

import msgspec
import pytest

from services.console.schemas import MAX_HEADER_BYTES, ExplainRequest, SentExplainRequest


def read(text: bytes) -> ExplainRequest:
    return msgspec.json.decode(text, type=SentExplainRequest).whole()


@pytest.mark.parametrize(
    "text", [b"{}", b'{"picker":"p","path":"/x","headers":[["a","b"],["c","d"]],"body":"{}","z":1}']
)
def test_a_request_that_is_decoded_in_two_steps_is_the_same(text: bytes) -> None:
    assert read(text) == msgspec.json.decode(text, type=ExplainRequest)


def test_a_pickers_name_that_no_picker_can_have_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"takes 1539 bytes .* - at `\$\.picker`"):
        read(b'{"picker":"%s"}' % (b"." * 513))


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (b'["",""],' * (MAX_HEADER_BYTES // 8) + b'["",""]', r"\$\.headers"),
        (b'["",""],' * 1000 + b'["",""]', "length <= 1000"),
        (b'["",""],1', "array"),
    ],
)
def test_too_many_headers_are_refused(headers: bytes, message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        read(b'{"headers":[%s]}' % headers)
