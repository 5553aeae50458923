"""The stream of decisions: each once when it is made, and again when it is over."""

from typing import Any

import msgspec
import pytest

from services.console.decisions import LIMIT, Decisions, DecisionsTopic, Newest
from shared.bus.columns import flow_hash
from shared.bus.errors import RequestTimeout
from shared.bus.query_client import Answer


class Pickers(Decisions):
    """Stands for pickers: by id, the run and the decisions so far."""

    def __init__(self, made: dict[str, tuple[int, list[dict[str, Any]]]]) -> None:
        self.made = made
        self.odd: dict[str, dict[str, Any]] = {}
        """What is in the answers instead, by picker."""
        self.asked: list[tuple[str, int]] = []
        self.pickers = lambda: sorted(self.made)

    async def newest(self, picker: str, after: int) -> tuple[int, Newest]:
        self.asked.append((picker, after))
        run, decisions = self.made[picker]
        if run < 0:
            raise RequestTimeout("no answer")
        content = {"total": len(decisions), "decisions": decisions[after:][::-1], **self.odd.get(picker, {})}
        return run, Answer(picker, "picker", run, msgspec.json.encode(content)).read(Newest)


def decision(number: int, state: str = "completed") -> dict[str, Any]:
    return {"request_id": f"r{number}", "at": f"{number:04}", "state": state}


async def news(topic: DecisionsTopic) -> list[tuple[str, str]]:
    piece = await topic.refresh()
    return [] if piece is None else read(piece)


def read(piece: bytes) -> list[tuple[str, str]]:
    content = msgspec.json.decode(piece.decode().strip().split("\ndata: ")[1])
    return [(decision["request_id"], decision["state"]) for decision in content["decisions"]]


async def test_each_is_told_once_and_again_when_it_is_over() -> None:
    made = [decision(1), decision(2, "under way"), decision(3)]
    pickers = Pickers({"p": (1, made)})
    topic = DecisionsTopic(pickers, dict)
    assert await news(topic) == [("r1", "completed"), ("r2", "under way"), ("r3", "completed")]
    assert await news(topic) == []
    made[1] = decision(2)
    made.append(decision(4))
    assert await news(topic) == [("r2", "completed"), ("r4", "completed")]
    assert await news(topic) == []
    assert pickers.asked[-1] == ("p", 4)
    assert sorted(read(topic.whole())) == [(f"r{number}", "completed") for number in (1, 2, 3, 4)]


async def test_a_restarted_picker_begins_anew_and_a_silent_one_is_named() -> None:
    pickers = Pickers({"p": (1, [decision(1), decision(2)]), "q": (-1, [])})
    topic = DecisionsTopic(pickers, dict)
    piece = await topic.refresh()
    assert piece is not None
    assert b'"missing":["no answer"]' in piece
    pickers.made["p"] = (2, [decision(5)])
    assert await news(topic) == [("r5", "completed")]


async def test_the_names_of_flows_are_learnt_from_decisions() -> None:
    made = [{**decision(number), "flow": f"tenant-{number % 2}"} for number in range(4)]
    topic = DecisionsTopic(Pickers({"p": (1, made)}), dict)
    await topic.refresh()
    assert topic.flows == {f"{flow_hash(name):016x}": name for name in ("tenant-0", "tenant-1")}


@pytest.mark.parametrize(
    "odd",
    [
        {"decisions": [{**decision(1), "flow": 5}]},
        {"decisions": [{**decision(1), "at": None}]},
        {"decisions": [decision(1)] * (LIMIT + 1)},
        {"total": 2**63},
        {"total": -1},
    ],
)
async def test_a_picker_whose_answer_cannot_be_read_is_named_and_others_are_shown(odd: dict[str, Any]) -> None:
    pickers = Pickers({"p": (1, [decision(1)]), "q": (1, [decision(2)])})
    pickers.odd["p"] = odd
    piece = await DecisionsTopic(pickers, dict).refresh()
    assert piece is not None
    assert read(piece) == [("r2", "completed")]
    assert b'"missing":["picker p answers what can\'t be read' in piece
