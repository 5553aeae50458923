"""The sum of what pickers answer to a replay, whatever they answer."""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from nats.aio.msg import Msg

from pointsman.replay import text
from shared import tasks
from shared.bus.codec import encode
from shared.bus.connection import Bus
from shared.bus.query_messages import MAX_PIECE, AnswerPiece
from shared.bus.subjects import Subjects
from shared.limits import BusLimits
from shared.service.replay import (
    EXAMPLES,
    MAX_ENTRIES,
    MAX_MOVES,
    MAX_TEXT,
    Fidelity,
    Gap,
    Move,
    Replay,
    ReplayAnswers,
    replay,
)
from tests.work import longest_turn


class Answering:
    """A bus whose pickers give these answers."""

    def __init__(self, *answers: str) -> None:
        self._answers = [answer.encode() for answer in answers]
        self.limits = BusLimits(max_senders=50)
        self.malformed = SimpleNamespace(report=lambda *_, **__: None)

    async def request_many(self, *_: object, last: Callable[[Msg], bool], **__: object) -> None:
        for picker, answer in enumerate(self._answers):
            for number, start in enumerate(range(0, len(answer), MAX_PIECE)):
                content, more = answer[start : start + MAX_PIECE], start + MAX_PIECE < len(answer)
                piece = AnswerPiece(
                    sender=f"p{picker}", tier="picker", run=1, number=number, more=more, content=content
                )
                last(cast(Any, SimpleNamespace(data=encode(piece), subject="inbox")))


async def replayed(*answers: str | Replay) -> ReplayAnswers:
    texts = [answer if isinstance(answer, str) else msgspec.json.encode(answer).decode() for answer in answers]
    return await replay(cast(Bus, Answering(*texts)), Subjects(), "pool", "document")


def long(first: int, count: int) -> Replay:
    """With as many entries in each list."""
    names = [f"n{number:05}" for number in range(first, first + count)]
    return Replay(
        errors=tuple(names),
        warnings=tuple(names),
        skipped=dict.fromkeys(names, 1),
        failures=dict.fromkeys(names, 1),
        moves=tuple(Move(chosen=name, instead="b", decisions=1, examples=("x",) * 9) for name in names),
        gaps=tuple(Gap(input=name, used="current", decisions=1) for name in names),
    )


def lengths(found: Replay) -> list[int]:
    return list(map(len, (found.errors, found.warnings, found.skipped, found.failures, found.gaps, found.moves)))


def test_numbers_whose_sum_cant_be_printed_are_an_error_of_who_gives_them() -> None:
    huge = '{"replayed":%s}' % ("9" * 4300)
    found = asyncio.run(replayed(huge, '{"replayed":2,"elsewhere":1}', huge))
    assert found.pickers == ("p1",)
    assert [line.partition(":")[0] for line in found.missing] == ["picker p0", "picker p2"]
    assert next(text(found.total, 1)) == "1 of the last 2 decisions of 1 picker would have gone elsewhere"


def test_answers_are_added_up() -> None:
    def one(**moved: int) -> Replay:
        return Replay(
            revision="r",
            warnings=("w",),
            decisions=3,
            skipped={"late": 1},
            replayed=2,
            elsewhere=1,
            by_chance=1,
            moves=tuple(
                Move(chosen="a", instead=to, decisions=count, examples=(f"{to}{count}",)) for to, count in moved.items()
            ),
            gaps=(Gap(input="i", used="nothing", decisions=2),),
            failures={"f": 1},
            fidelity=Fidelity(replayed=2, elsewhere=1),
        )

    assert asyncio.run(replayed(one(b=1, c=2), one(b=3))).total == Replay(
        revision="r",
        warnings=("w",),
        decisions=6,
        skipped={"late": 2},
        replayed=4,
        elsewhere=2,
        by_chance=2,
        moves=(
            Move(chosen="a", instead="b", decisions=4, examples=("b1", "b3")),
            Move(chosen="a", instead="c", decisions=2, examples=("c2",)),
        ),
        gaps=(Gap(input="i", used="nothing", decisions=4),),
        failures={"f": 2},
        fidelity=Fidelity(replayed=4, elsewhere=2),
    )


def test_each_list_of_a_replay_and_of_their_sum_is_cut() -> None:
    found = asyncio.run(replayed(long(0, MAX_ENTRIES + 500), Replay(errors=("x" * 9000,)))).total
    assert lengths(found) == [MAX_ENTRIES] * 6
    assert {len(move.examples) for move in found.moves} == {EXAMPLES}
    assert len(asyncio.run(replayed(Replay(errors=("x" * 9000,)))).total.errors[0]) == MAX_TEXT
    many = [long(number * MAX_ENTRIES, MAX_ENTRIES) for number in range(MAX_MOVES // MAX_ENTRIES + 2)]
    assert lengths(asyncio.run(replayed(*many)).total) == [MAX_ENTRIES] * 5 + [MAX_MOVES]


def test_answers_beyond_the_limit_of_senders_are_ignored_and_counted() -> None:
    found = asyncio.run(replayed(*[Replay(replayed=1)] * 52))
    assert (found.total.replayed, len(found.pickers)) == (50, 50)
    assert found.missing == ("2 answers are ignored: there are more than 50",)


def test_an_answer_with_more_values_than_lists_have_entries_is_an_error() -> None:
    found = asyncio.run(replayed(long(0, 20_000), Replay(replayed=1)))
    assert (found.pickers, found.missing) == (("p1",), ("picker p0: the answer is too large",))


async def test_answers_are_added_up_in_turns_with_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.in_turns, "__defaults__", (0.0, time.monotonic))  # others run after each answer
    assert await longest_turn(replayed(*(long(number * 100, 100) for number in range(50)))) < 0.25
