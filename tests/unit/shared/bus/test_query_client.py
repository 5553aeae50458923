"""Answers that come in pieces, from several members at once."""

from collections import deque

import pytest

from shared.bus.codec import encode
from shared.bus.errors import Malformed
from shared.bus.query_client import AnswerPieces, QueryFailed
from shared.bus.query_messages import AnswerPiece


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
