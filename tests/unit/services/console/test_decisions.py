"""The stream of decisions: each once when it is made, and again when it is over."""

import asyncio
import tracemalloc
from typing import Any

import msgspec
import pytest

from services.console import decisions
from services.console.decisions import KEPT_BYTES, LIMIT, MAX_SUMMARY, Decisions, DecisionsTopic, Newest
from shared.bus.columns import flow_hash
from shared.bus.errors import RequestTimeout
from shared.bus.query_client import Answer

SILENT = 0


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
        if run == SILENT:
            await asyncio.Event().wait()
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
    assert sorted(read(await topic.whole())) == [(f"r{number}", "completed") for number in (1, 2, 3, 4)]


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
    assert b'"missing":["picker p has an answer that can\'t be read' in piece


async def test_of_a_summary_pages_get_what_is_known_and_nothing_else() -> None:
    known = {**decision(1), "served_by": None, "refused": {"status": 429, "message": "full", "reason": "shed", "x": 1}}
    made = [{**known, "more": [[]] * 10_000, "picker": "q"}]
    piece = await DecisionsTopic(Pickers({"p": (1, made)}), dict).refresh()
    assert piece is not None
    [shown] = msgspec.json.decode(piece.decode().strip().split("\ndata: ")[1])["decisions"]
    assert shown == {**known, "refused": {"status": 429, "message": "full", "reason": "shed"}, **of("p", 1)}


def of(picker: str, number: int) -> dict[str, str]:
    """Who made the decision of this number, and its key."""
    return {"picker": picker, "key": f"{picker}/1/{number}"}


async def test_a_summary_that_is_too_long_costs_only_its_picker() -> None:
    made = {"p": (1, [{**decision(1), "model": "m" * MAX_SUMMARY}]), "q": (1, [decision(2)])}
    piece = await DecisionsTopic(Pickers(made), dict).refresh()
    assert piece is not None
    assert read(piece) == [("r2", "completed")]
    assert b'"missing":["picker p answers with a summary of ' in piece


async def test_what_the_stream_begins_with_is_bounded_in_bytes() -> None:
    long = {"model": "m" * (MAX_SUMMARY - 300)}
    made = {picker: (1, [{**decision(number), **long} for number in range(100)]) for picker in "pq"}
    topic = DecisionsTopic(Pickers(made), dict)
    piece = await topic.refresh()
    assert piece is not None
    for told in (piece, await topic.whole()):
        assert KEPT_BYTES * 0.9 < len(told) < KEPT_BYTES * 1.1
        assert read(told)[-1] == ("r99", "completed")


async def test_pickers_that_are_silent_keep_nobody_from_the_decisions_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decisions, "ASKED", 2)
    monkeypatch.setattr(decisions, "ROUND", 0.01)
    made = {id: (SILENT, list[dict[str, Any]]()) for id in "abyz"}
    topic = DecisionsTopic(Pickers(made), dict)
    told = [await topic.refresh() for _ in range(2)]
    made["y"] = made["z"] = (1, [decision(1)])
    told += [await topic.refresh() for _ in range(2)]
    assert [len(read(piece)) if piece else None for piece in told] == [0, None, None, 2], "the silent ones take turns"
    assert b'"missing":["4 pickers have not answered within 0.01 s"]' in (told[0] or b"")
    assert b'"missing":["2 pickers have not' in (told[3] or b"")


async def test_decisions_that_are_under_way_for_long_take_a_limited_memory() -> None:
    long = {"model": "m" * (MAX_SUMMARY - 300)}
    made = [{**decision(number, "under way"), **long} for number in range(LIMIT)]
    topic = DecisionsTopic(Pickers({f"p{number}": (1, made) for number in range(20)}), dict)
    tracemalloc.start()
    try:
        assert await topic.refresh() is not None
        assert await topic.refresh() is None
        assert tracemalloc.get_traced_memory()[0] < 3 * KEPT_BYTES
    finally:
        tracemalloc.stop()


async def test_decisions_in_full_are_passed_on_as_they_are_with_who_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "p": b'{"decisions":[{"at":"1","picker":"q","x":[1,{}]},{ }]}',
        "q": b'{"decisions":[{"at":"2"}]}',
        "r": b'{"decisions":[{"at":"3","x":"\xff"}]}',
        "s": b'{"decisions":[{"at":"4"},5]}',
    }

    async def query_members(*_: object, **__: object) -> list[Answer]:
        return [Answer(id, "picker", 1, content) for id, content in answers.items()]

    monkeypatch.setattr(decisions, "query_members", query_members)
    asked = Decisions(None, None, "pool", lambda: [*answers, "t"])  # type: ignore[arg-type]
    found, missing = await asked.of_request("r1")
    assert [msgspec.json.decode(one) for one in found] == [
        {"at": "4", "picker": "s"},
        {"at": "2", "picker": "q"},
        {"at": "1", "x": [1, {}], "picker": "p"},
        {"picker": "p"},
    ]
    assert missing[0] == "t doesn't answer"
    assert missing[1] == "picker r has an answer that can't be read: invalid start byte"
    assert missing[2].startswith("picker s has an answer that can't be read: Expected `object`")
