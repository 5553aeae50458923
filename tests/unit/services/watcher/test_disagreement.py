"""A watcher on standby that would publish something else than is published."""

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from services.watcher.disagreement import Disagreement
from shared import tasks
from shared.bus.facts import Put
from shared.model import Configuration, Endpoint, Fact


def facts(*names: str, port: int = 80, text: str = "a", origin: str = "f") -> dict[str, Fact]:
    found: dict[str, Fact] = {
        f"p.endpoint.{name}": Endpoint(id=name, name=name, address="10.0.0.1", port=port) for name in names
    }
    return {**found, "p.config": Configuration(text=text, origin=origin)}


def published(facts: dict[str, Fact]) -> dict[str, Put]:
    return {key: Put(key, (1, 1), 0, fact) for key, fact in facts.items()}


@pytest.mark.parametrize(
    ("ours", "theirs", "kept", "named"),
    [
        (facts("a"), facts("a"), (), None),
        (facts("a", origin="one"), facts("a", origin="another"), (), None),
        (facts("a"), facts("a", "b"), {"p.endpoint.b"}, None),
        (facts("a"), facts("a", "b"), (), "p.endpoint.b"),
        (facts("a", "b"), facts("b"), (), "p.endpoint.a"),
        (facts("a"), facts("a", port=81), (), "p.endpoint.a"),
        (facts("a", text="b"), facts("a"), (), "p.config"),
        (facts(*"abcde"), facts(), (), "p.endpoint.a, p.endpoint.b, p.endpoint.c, …"),
    ],
    ids=["equal", "another file", "kept", "less", "more", "changed", "configuration", "many"],
)
async def test_what_differs_is_named(
    ours: dict[str, Fact], theirs: dict[str, Fact], kept: set[str], named: str | None
) -> None:
    disagreement = Disagreement(settling=0.0)
    await disagreement.compare(ours, published(theirs), kept, 0.0)
    reason = f"this watcher would publish other facts than the leader: {named}" if named else None
    assert disagreement.reason == reason


async def test_it_is_said_once_and_not_while_a_change_is_on_its_way() -> None:
    disagreement = Disagreement(settling=10.0)

    async def said(ours: dict[str, Fact], *times: float) -> list[bool]:
        reasons: list[bool] = []
        for now in times:
            await disagreement.compare(ours, published(facts("a")), (), now)
            reasons.append(disagreement.reason is not None)
        return reasons

    with capture_logs() as logs:
        assert await said(facts("b"), 0.0, 9.0) == [False, False]
        assert await said(facts("a"), 9.5) == [False]
        assert await said(facts("b"), 9.9, 19.0, 20.0, 30.0) == [False, False, True, True]
        assert [log["event"] for log in logs] == ["facts.disagree"]
        assert await said(facts("a"), 31.0) == [False]
        assert await said(facts("c"), 32.0, 50.0) == [False, True]
    assert len(logs) == 2


async def test_many_facts_are_compared_in_turns_with_what_changes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.in_turns, "__defaults__", (0.0, time.monotonic))  # others run after each fact
    ours = facts(*(f"{number:03}" for number in range(100)))
    theirs = published(ours)
    disagreement = Disagreement(settling=0.0)
    comparing = asyncio.create_task(disagreement.compare(ours, theirs, (), 0.0))
    turns = 0
    while not comparing.done():
        await asyncio.sleep(0)
        changed = facts(f"{99 - turns:03}", "new", port=81)
        ours |= changed
        theirs |= published(changed)
        turns += 1
    await comparing
    assert turns >= 100
    assert disagreement.reason is None
