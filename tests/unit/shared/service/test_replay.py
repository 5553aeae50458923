"""The sum of what pickers answer to a replay, whatever they answer."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from nats.aio.msg import Msg

from pointsman.replay import text
from shared.bus.codec import encode
from shared.bus.connection import Bus
from shared.bus.query_messages import MAX_PIECE, AnswerPiece
from shared.bus.subjects import Subjects
from shared.service.replay import ReplayAnswers, replay


class Answering:
    """A bus whose pickers give these answers."""

    def __init__(self, *answers: str) -> None:
        self._answers = [answer.encode() for answer in answers]
        self.malformed = SimpleNamespace(report=lambda *_, **__: None)

    async def request_many(self, *_: object, last: Callable[[Msg], bool], **__: object) -> None:
        for picker, answer in enumerate(self._answers):
            for number, start in enumerate(range(0, len(answer), MAX_PIECE)):
                content, more = answer[start : start + MAX_PIECE], start + MAX_PIECE < len(answer)
                piece = AnswerPiece(
                    sender=f"p{picker}", tier="picker", run=1, number=number, more=more, content=content
                )
                last(cast(Any, SimpleNamespace(data=encode(piece), subject="inbox")))


async def replayed(*answers: str) -> ReplayAnswers:
    return await replay(cast(Bus, Answering(*answers)), Subjects(), "pool", "document")


def test_numbers_whose_sum_cant_be_printed_are_an_error_of_who_gives_them() -> None:
    huge = '{"replayed":%s}' % ("9" * 4300)
    found = asyncio.run(replayed(huge, '{"replayed":2,"elsewhere":1}', huge))
    assert found.pickers == ("p1",)
    assert [line.partition(":")[0] for line in found.missing] == ["picker p0", "picker p2"]
    assert next(text(found.total, 1)) == "1 of the last 2 decisions of 1 picker would have gone elsewhere"
