"""Members of all tiers answer queries over a real nats-server."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.picker.request_stream import RequestStream
from shared.bus.codec import encode
from shared.bus.connection import Bus
from shared.bus.errors import BusError, NoResponders
from shared.bus.messages import Load
from shared.bus.query_client import query_member, query_members
from shared.bus.query_messages import ExplainQuery, QueryArguments, StatusQuery, ViewQuery
from shared.bus.responder import Responder
from shared.bus.subjects import Subjects
from shared.service.status import MemberStatus
from shared.service.survey import Survey, survey
from shared.version import VERSION
from tests.children import children_end_before_the_loop
from tests.in_process import picker, serving
from tests.nats import NatsServer
from tests.protocol.collector.harness import POOL, OddServer, collector, vllm
from tests.protocol.watcher.harness import watcher
from tests.unit.services.picker.extproc.proxy import LEAN, body, headers
from tests.waiting import TIMEOUT, eventually

__all__ = ["children_end_before_the_loop"]

SUBJECTS = Subjects()
DOCUMENT = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-scorer}
"""
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
        return (await query_member(self.bus, SUBJECTS, POOL, tier, id, StatusQuery())).read(MemberStatus)


@pytest.fixture
async def members(nats: NatsServer, tmp_path: Path) -> AsyncIterator[Members]:
    async with AsyncExitStack() as stack:
        made = Members(stack, nats, tmp_path)
        await made.start()
        yield made


async def test_every_tier_answers_how_it_is(members: Members) -> None:
    async def so() -> Survey:
        found = await survey(members.bus, SUBJECTS, POOL, timeout=ENOUGH)
        assert not found.problems, found.problems
        return found

    found = await eventually(so, "a pool without problems")
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
        await query_member(members.bus, SUBJECTS, POOL, "picker", "nobody", StatusQuery())
    assert await query_members(members.bus, SUBJECTS, POOL, "no-tier", StatusQuery()) == []


class NonsenseQuery(QueryArguments, frozen=True):
    KIND = "nonsense"


class BadQuery(QueryArguments, frozen=True):
    KIND = "view"
    endpoint: Any = 5


@pytest.mark.parametrize(
    ("query", "error"),
    [
        (NonsenseQuery(), "unknown query 'nonsense': this collector answers status, view"),
        (BadQuery(), "Expected `str`"),
    ],
)
async def test_a_question_that_isnt_understood_gets_an_error_that_names_it(
    members: Members, query: QueryArguments, error: str
) -> None:
    answer = await query_member(members.bus, SUBJECTS, POOL, "collector", "c", query)
    assert error in answer.error


async def test_members_that_know_the_same_show_the_same(members: Members) -> None:
    async def so() -> bool:
        texts = [
            (await query_member(members.bus, SUBJECTS, POOL, "picker", id, ViewQuery())).document()
            for id in ("p1", "p2")
        ]
        assert texts[0]["facts"] == texts[1]["facts"] != []
        assert [row["picker"] for row in texts[0]["load"]] == ["p1", "p2"]
        assert texts[0] == texts[1]
        return True

    await eventually(so, "equal views")


async def test_a_long_document_comes_whole_and_one_that_fails_says_so(nats: NatsServer) -> None:
    def long(query: ViewQuery) -> Iterator[bytes]:
        yield b'["'
        for _ in range(1000):
            yield b"x" * 700
        if query.endpoint:
            raise ValueError("it broke")
        yield b'"]'

    async with Bus(nats.url, name="member") as bus, Bus(nats.url, name="asker") as asker:
        responder = Responder(bus, SUBJECTS, [POOL], "picker", "p", {ViewQuery: long})
        await responder.start()
        await bus.wait_connected(TIMEOUT)
        await asker.wait_connected(TIMEOUT)
        whole, *others = await asyncio.gather(
            *(query_member(asker, SUBJECTS, POOL, "picker", "p", ViewQuery(), timeout=TIMEOUT) for _ in range(3)),
            query_member(asker, SUBJECTS, POOL, "picker", "p", ViewQuery(endpoint="x"), timeout=TIMEOUT),
        )
        assert whole.document() == ["x" * 700_000]
        assert [other.error for other in others] == ["", "", "ValueError: it broke"]
        await responder.close()


async def test_a_document_that_nobody_waits_for_any_more_is_closed(nats: NatsServer) -> None:
    now, begun, closed = 0.0, False, False
    waited = asyncio.get_running_loop().create_future()

    def waiting() -> Iterator[bytes | asyncio.Future[None]]:
        nonlocal begun, closed
        begun = True
        try:
            yield waited
        finally:
            closed = True

    document = waiting()
    async with Bus(nats.url, name="member") as bus, Bus(nats.url, name="asker") as asker:
        responder = Responder(bus, SUBJECTS, [POOL], "picker", "p", {ViewQuery: lambda _: document}, clock=lambda: now)
        await responder.start()
        await bus.wait_connected(TIMEOUT)
        await asker.wait_connected(TIMEOUT)
        asking = asyncio.create_task(query_member(asker, SUBJECTS, POOL, "picker", "p", ViewQuery(), timeout=TIMEOUT))
        await eventually(lambda: begun)
        now = 1e9
        waited.set_result(None)
        await eventually(lambda: closed)
        asking.cancel()
        await asyncio.wait([asking])
        await responder.close()


async def test_what_a_document_waits_for_is_cancelled_when_the_time_is_over(nats: NatsServer) -> None:
    """Also if the clock then shows a moment before."""
    waited = asyncio.get_running_loop().create_future()

    def waiting(_: ViewQuery) -> Iterator[bytes | asyncio.Future[None]]:
        yield waited
        waited.result()

    async with Bus(nats.url, name="member") as bus, Bus(nats.url, name="asker") as asker:
        responder = Responder(bus, SUBJECTS, [POOL], "picker", "p", {ViewQuery: waiting}, clock=lambda: 0.0)
        await responder.start()
        await bus.wait_connected(TIMEOUT)
        await asker.wait_connected(TIMEOUT)
        with pytest.raises(BusError):
            await query_member(asker, SUBJECTS, POOL, "picker", "p", ViewQuery(), timeout=0.2)
        await eventually(lambda: responder.refused == 1, lambda: responder)
        assert waited.cancelled()
        await responder.close()


async def test_other_questions_are_answered_while_a_document_waits_for_something(nats: NatsServer) -> None:
    async with Bus(nats.url, name="member") as bus, Bus(nats.url, name="asker") as asker:
        waited = asyncio.get_running_loop().create_future()

        def waiting(_: ViewQuery) -> Iterator[bytes | asyncio.Future[None]]:
            yield waited
            yield b"true"

        responder = Responder(
            bus, SUBJECTS, [POOL], "picker", "p", {ViewQuery: waiting, StatusQuery: lambda _: iter([b"1"])}
        )
        await responder.start()
        await bus.wait_connected(TIMEOUT)
        await asker.wait_connected(TIMEOUT)
        first = asyncio.create_task(query_member(asker, SUBJECTS, POOL, "picker", "p", ViewQuery(), timeout=TIMEOUT))
        await asyncio.sleep(0)
        assert (
            await query_member(asker, SUBJECTS, POOL, "picker", "p", StatusQuery(), timeout=TIMEOUT)
        ).document() == 1
        assert not first.done()
        waited.set_result(None)
        assert (await first).document() is True
        await responder.close()


async def run(nats: NatsServer, *words: str) -> tuple[int, str, str]:
    """A command; its exit code, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pointsman", *words, f"--nats-url={nats.url}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), TIMEOUT)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_status_says_what_is_wrong_and_exits_with_1(nats: NatsServer, members: Members) -> None:
    async def well() -> bool:
        code, out, err = await run(nats, "status")
        return (code, err) == (0, "") and out.endswith("all is well\n")

    await eventually(well, "a pool without problems")

    async def haunt() -> None:
        for number in count(1):
            row = Load(sender="ghost", sent=time.monotonic(), sequence=number, ids=b"", requests=b"", tokens=b"")
            await members.bus.publish(SUBJECTS.load(POOL, "ghost"), encode(row))
            await asyncio.sleep(0.2)

    haunting = asyncio.create_task(haunt())

    async def haunted() -> bool:
        code, out, _ = await run(nats, "status", "--format=json")
        return code == 1 and "picker ghost doesn't answer, and is seen by p1, p2" in json.loads(out)["problems"]

    await eventually(haunted, "the ghost is told")
    haunting.cancel()


async def test_commands_decode_entries_and_explain_and_replay_decisions(
    nats: NatsServer, members: Members, tmp_path: Path
) -> None:
    await eventually(lambda: members.first.readiness.ready and members.first.view.layout.endpoints, "an endpoint")
    code, out, err = await run(nats, "bus", "get", "endpoint.default/a", "--format=json")
    assert (code, err) == (0, "")
    assert json.loads(out)["fact"]["name"] == "a"
    code, _, err = await run(nats, "bus", "get", "endpoint.default/b")
    assert (code, err) == (1, "no entry 'endpoint.default/b'; `pointsman bus ls` lists them\n")
    code, out, err = await run(nats, "explain", "--model=m", "--prompt=hello", "--picker=p1", "--header=x-request-id=1")
    assert (code, err) == (0, "")
    assert "because: default/a was the only candidate" in out
    assert not members.first.ring.total
    stream = RequestStream(members.first.handler)
    for message in (
        headers([(":method", "POST"), (":path", "/v1/completions"), ("x-request-id", "mine")], modes=LEAN),
        body(b'{"model":"m","prompt":"hello"}', end=True),
    ):
        list(stream.receive(message.SerializeToString()))
    code, out, err = await run(nats, "why", "mine")
    assert (code, err) == (0, "")
    assert "by picker p1: default/a was the only candidate" in out
    stream.end()
    code, out, err = await run(nats, "explain", "mine")
    assert (code, err) == (0, ""), err
    assert out.startswith("mine at ")
    assert "because: " in out
    assert "profile default (decides): 1 candidates" in out
    code, out, err = await run(nats, "explain", "nobody")
    assert (code, out, err) == (1, "", "nobody: no picker remembers a decision on it\n")
    code, out, err = await run(nats, "why", "--endpoint=b")
    assert (code, out, err) == (1, "", "no member of the pool knows an endpoint 'b'; it has default/a\n")
    code, out, err = await run(nats, "why", "--endpoint=a")
    assert err == ""
    await _replays(nats, tmp_path)
    never = "picker p1, p2: metrics that it never reported (KVCacheUsagePercent), load scores 0"
    assert (code, out.splitlines()[1]) == (0, f"  {never}")


async def test_a_picker_whose_answer_cant_be_read_is_named_and_doesnt_hide_one_that_answers_later(
    nats: NatsServer,
) -> None:
    never = asyncio.get_running_loop().create_future()
    asked = 0

    def late(_: StatusQuery) -> Iterator[bytes | asyncio.Future[None]]:
        nonlocal asked
        asked += 1
        if asked == 1:  # the other one is first
            yield never
        yield msgspec.json.encode(MemberStatus(id="good", tier="picker", version=VERSION, ready=True))

    async with Bus(nats.url, name="member") as bus:
        bad = Responder(bus, SUBJECTS, [POOL], "picker", "bad", {StatusQuery: lambda _: iter([b'{"id":1}'])})
        good = Responder(
            bus, SUBJECTS, [POOL], "picker", "good", {StatusQuery: late, ExplainQuery: lambda _: iter([b"{}"])}
        )
        await bus.wait_connected(TIMEOUT)
        await bad.start()
        await good.start()
        code, out, err = await run(nats, "explain", "--model=m", "--format=json", "--timeout=5")
        assert (code, json.loads(out)) == (0, {"picker_id": "good"})
        assert err.startswith("picker bad has an answer that can't be read: ")
        await good.close()
        await bad.close()


def written(directory: Path, document: str) -> str:
    file = directory / "new.yaml"
    file.write_text(document)
    return str(file)


async def _replays(nats: NatsServer, directory: Path) -> None:
    file = written(directory, DOCUMENT)
    code, out, err = await run(nats, "replay", file)
    assert (code, err) == (0, "")
    assert out.startswith("0 of the last 1 decisions of 2 pickers would have gone elsewhere\n")
    file = written(
        directory, DOCUMENT.replace("queue-scorer", "label-selector-filter, parameters: {matchLabels: {a: b}}")
    )
    code, out, err = await run(nats, "replay", file, "--format=json")
    (move,) = json.loads(out)["total"]["moves"]
    assert (move["chosen"], move["instead"], move["examples"]) == ("default/a", "", ["mine"])
    file = written(directory, DOCUMENT.replace("queue-scorer", "queue-scorre"))
    code, out, err = await run(nats, "replay", file)
    assert (code, out) == (1, "")
    assert err.startswith(f"{file}: plugins[0].type: 'queue-scorre' is no plugin type that is installed")
