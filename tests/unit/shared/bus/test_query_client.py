"""Answers that come in pieces, from several members at once."""

import asyncio
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nats.aio.msg import Msg

from shared.bus.codec import encode
from shared.bus.connection import Bus
from shared.bus.errors import Malformed
from shared.bus.query_client import AnswerPieces, QueryFailed, query_member, query_members
from shared.bus.query_messages import AnswerPiece, StatusQuery, ViewQuery
from shared.bus.subjects import Subjects


def piece(
    number: int, content: bytes = b"", *, id: str = "p", run: int = 1, more: bool = False, error: str = ""
) -> bytes:
    return encode(
        AnswerPiece(sender=id, tier="picker", run=run, number=number, more=more, content=content, error=error)
    )


def test_pieces_of_several_members_are_joined_each_for_itself() -> None:
    collected = AnswerPieces()
    for data in (
        piece(0, b"[1,", more=True),
        piece(0, b"[3,", id="q", more=True),
        piece(1, b"2]"),
        piece(0, b"[5]", run=2),
        piece(1, b"4]", id="q"),
    ):
        collected.take(data)
    assert [(answer.id, answer.run, answer.document()) for answer in collected.answers()] == [
        ("p", 1, [1, 2]),
        ("p", 2, [5]),
        ("q", 1, [3, 4]),
    ]


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([piece(0, b"[", more=True), piece(2, b"]")], "a part of the answer got lost"),
        ([piece(0, b"[", more=True)], "the rest of the answer didn't come in time"),
        ([piece(0, b"[", more=True), piece(1, error="it broke")], "it broke"),
    ],
)
def test_an_answer_that_isnt_whole_has_an_error(pieces: list[bytes], error: str) -> None:
    collected = AnswerPieces()
    for data in pieces:
        collected.take(data)
    (answer,) = collected.answers()
    with pytest.raises(QueryFailed, match=error):
        answer.document()


def test_answers_that_are_no_documents_or_too_large_are_malformed() -> None:
    answer = AnswerPieces().take(piece(0, b"[1"))
    assert answer is not None
    with pytest.raises(Malformed):
        answer.document()


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(0, b"[" + b"1" * 59, more=True), piece(1, b"1" * 60, more=True)],
        [piece(0, b"[[],[],[],", more=True), piece(1, b"[],[]", more=True)],
        [piece(0, b"[1,1,1,1,1,1,1,1,1,1,1]")],
        [piece(0, b'[{"a":{"b":{"c":{}}}},{"a":{"b":{"c":{}}}}]')],
    ],
    ids=["bytes", "values in two pieces", "numbers", "objects"],
)
def test_an_answer_that_takes_too_much_ends_alone(pieces: list[bytes]) -> None:
    collected = AnswerPieces(each=(100, 9))
    for data in pieces:
        collected.take(data)
    collected.take(piece(0, b"[1,[],{}]", id="q"))
    assert not collected.begun
    large, small = collected.answers()
    assert small.document() == [1, [], {}]
    with pytest.raises(QueryFailed, match="the answer is too large"):
        large.document()


@pytest.mark.parametrize("pieces", [[b"[" + b"9" * 65 + b"]"], [b"[" + b"9" * 40, b"9" * 40 + b"]"]])
def test_an_answer_with_a_number_that_takes_long_to_read_is_an_error(pieces: list[bytes]) -> None:
    """What a number costs grows with the square of its digits, and two of 4 300 digits have a sum that can't be
    printed."""
    collected = AnswerPieces()
    for number, content in enumerate(pieces):
        collected.take(piece(number, content, more=number < len(pieces) - 1))
    collected.take(piece(0, b'["' + b"9" * 65 + b'"]', id="q"))
    long, text = collected.answers()
    assert text.document() == ["9" * 65]
    with pytest.raises(QueryFailed, match="a number with too many digits"):
        long.document()


def test_who_is_of_another_tier_than_was_asked_gives_no_answer() -> None:
    collected = AnswerPieces(tier="watcher")
    with pytest.raises(Malformed, match="a watcher was asked, and 'p' answers as 'picker'"):
        collected.take(piece(0, b"1"))
    assert collected.answers() == []
    assert AnswerPieces(tier="picker").take(piece(0, b"1")) is not None


def test_values_count_in_what_all_answers_may_take() -> None:
    collected = AnswerPieces(limit=10_000)
    with pytest.raises(Malformed, match="too large"):
        collected.take(piece(0, b"[" + b"1," * 100 + b"1]"))


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("members", [1, 4])
def test_answers_that_are_too_large_together_end_the_question(more: bool, members: int) -> None:
    """Members and pieces without content take room, too."""
    collected = AnswerPieces(limit=10_000)
    places = [divmod(number, members) if more else (0, number) for number in range(1000)]
    pieces = iter([piece(part, id=f"m{member}", more=more) for part, member in places])
    with pytest.raises(Malformed, match="too large"):
        deque(map(collected.take, pieces))
    taken = 999 - len(list(pieces))
    assert 5 < taken < 20
    assert (collected.full, collected.begun) == (True, more)
    errors = ["the answers are too large"] * members if more else [""] * taken
    assert [answer.error for answer in collected.answers()] == errors


class InventedAnswers:
    """Answers of 32 KiB that don't end, each in the name of another member."""

    def __init__(self, tier: str = "picker") -> None:
        self.size = 0
        self.tier = tier
        self.malformed = SimpleNamespace(report=lambda *_, **__: None)

    async def request_many(self, *_: object, last: Callable[[Msg], bool], **__: object) -> None:
        content = b" " * 32 * 2**10
        for number in range(9000):
            answer = AnswerPiece(sender=f"m{number}", tier=self.tier, run=1, number=0, more=True, content=content)
            data = encode(answer)
            self.size += len(data)
            if last(cast(Any, SimpleNamespace(data=data, subject="inbox"))):
                return


def test_a_query_of_one_member_takes_no_more_than_its_answer_may_have() -> None:
    """Many are asked at once, and others can answer in the name of further ones."""
    bus = InventedAnswers()
    answer = asyncio.run(query_member(cast(Bus, bus), Subjects(), "pool", "picker", "m0", StatusQuery()))
    assert (answer.id, answer.error) == ("m0", "the answers are too large")
    assert 8 * 2**20 < bus.size < 24 * 2**20


def test_only_malformed_answers_that_are_too_large_are_an_error_of_the_query() -> None:
    bus = InventedAnswers("collector")
    with pytest.raises(Malformed, match="picker m0 are too large"):
        asyncio.run(query_member(cast(Bus, bus), Subjects(), "pool", "picker", "m0", StatusQuery()))


@pytest.mark.parametrize(("query", "limit"), [(StatusQuery(), 128), (ViewQuery(), 256)])
def test_statuses_of_all_members_take_half_of_what_other_answers_take(
    query: StatusQuery | ViewQuery, limit: int
) -> None:
    """They are asked for all the time, and are kept until they are judged together."""
    bus = InventedAnswers()
    asyncio.run(query_members(cast(Bus, bus), Subjects(), "pool", "picker", query))
    assert limit - 5 < bus.size / 2**20 < limit + 1
