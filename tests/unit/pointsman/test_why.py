"""What `pointsman why` makes of pickers' answers."""

import pytest

from pointsman.why import because, decisions
from shared.bus.query_client import Answer


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"decisions":1}', b'{"decisions":[1]}', b'{"decisions":[{}]}', b'{"decisions":[{"at":1}]}'],
)
def test_an_answer_that_cant_be_read_doesnt_hide_the_others(content: bytes) -> None:
    good = Answer("p1", "picker", 1, b'{"decisions":[{"at":"12:00","why":["it was the best"]}]}')
    (decision,) = decisions([Answer("p0", "picker", 1, content), good])
    assert because("r", decision) == ["r at 12:00 by picker p1: it was the best"]
