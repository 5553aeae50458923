"""Members of all tiers answer queries over a real nats-server."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from shared.bus.asking import ask, ask_all
from shared.bus.connection import Bus
from shared.bus.errors import NoResponders
from shared.bus.query_messages import AskStatus, Question
from shared.bus.subjects import Subjects
from shared.service.status import MemberStatus
from shared.service.survey import survey
from shared.version import VERSION
from tests.in_process import picker, serving
from tests.nats import NatsServer
from tests.protocol.collector.harness import POOL, OddServer, collector, vllm
from tests.protocol.watcher.harness import watcher
from tests.waiting import TIMEOUT, eventually

SUBJECTS = Subjects()
ENOUGH = 1.0
"""Seconds in which members in this process answer."""


class Members:
    """One member of each tier in this process, in front of one model server."""

    def __init__(self, stack: AsyncExitStack, nats: NatsServer, directory: Path) -> None:
        self._stack, self._nats, self._directory = stack, nats, directory

    async def start(self) -> None:
        server = await self._stack.enter_async_context(OddServer(vllm(1.0)))
        files = self._directory / "endpoints.yaml"
        files.write_text(f"endpoints:\n- {{name: a, address: 127.0.0.1, port: '{server.port}'}}\n")
        enter = self._stack.enter_async_context
        self.watcher = await enter(watcher(self._nats.url, id="w", endpoints_file=str(files)))
        self.collector = await enter(collector(self._nats.url, id="c"))
        self.first = await enter(serving(picker(self._nats.url, id="p1")))
        self.second = await enter(serving(picker(self._nats.url, id="p2")))
        self.bus = await enter(Bus(self._nats.url, name="asker"))
        await self.bus.wait_connected(TIMEOUT)

    async def status(self, tier: str, id: str) -> MemberStatus:
        return (await ask(self.bus, SUBJECTS, POOL, tier, id, AskStatus())).read(MemberStatus)


@pytest.fixture
async def members(nats: NatsServer, tmp_path: Path) -> AsyncIterator[Members]:
    async with AsyncExitStack() as stack:
        made = Members(stack, nats, tmp_path)
        await made.start()
        yield made


async def test_every_tier_answers_how_it_is(members: Members) -> None:
    async def so() -> bool:
        found = await survey(members.bus, SUBJECTS, POOL, timeout=ENOUGH)
        assert not found.problems, found.problems
        return True

    await eventually(so, "a pool without problems")
    found = await survey(members.bus, SUBJECTS, POOL, timeout=ENOUGH)
    assert [(member.tier, member.id) for member in found.members] == [
        ("watcher", "w"),
        ("collector", "c"),
        ("picker", "p1"),
        ("picker", "p2"),
    ]
    assert found.leader == "w"
    assert {member.version for member in found.members} == {VERSION}
    assert {member.facts.digest for member in found.members if member.facts} == {
        member.facts.announced_digest for member in found.members if member.facts
    }
    assert [member.sees.get("picker") for member in found.members[2:]] == [("p2",), ("p1",)]
    by_id = {member.id: member for member in found.members}
    assert by_id["w"].watcher is not None
    assert by_id["w"].watcher.leads
    assert by_id["c"].collector is not None
    assert (by_id["c"].collector.assigned, by_id["c"].collector.down) == (1, ())
    assert by_id["p1"].picker is not None
    assert (by_id["p1"].picker.endpoints, by_id["p1"].picker.stale) == (1, ())


async def test_one_member_is_asked_by_its_id_and_an_unknown_one_answers_nothing(members: Members) -> None:
    assert (await members.status("picker", "p2")).id == "p2"
    with pytest.raises(NoResponders):
        await ask(members.bus, SUBJECTS, POOL, "picker", "nobody", AskStatus())
    assert await ask_all(members.bus, SUBJECTS, POOL, "no-tier", AskStatus()) == []


class AskNonsense(Question, frozen=True):
    KIND = "nonsense"


class AskBadly(Question, frozen=True):
    KIND = "view"
    endpoint: Any = 5


@pytest.mark.parametrize(
    ("question", "error"),
    [(AskNonsense(), "unknown query 'nonsense': this collector answers status, view"), (AskBadly(), "Expected `str`")],
)
async def test_a_question_that_isnt_understood_gets_an_error_that_names_it(
    members: Members, question: Question, error: str
) -> None:
    answer = await ask(members.bus, SUBJECTS, POOL, "collector", "c", question)
    assert error in answer.error
