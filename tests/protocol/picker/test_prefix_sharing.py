"""Pickers on one nats-server share where they placed prompts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import pytest

from services.picker.app import PickerService
from services.picker.bus import prefix_sharing
from services.picker.request_stream import RequestStream
from services.picker.state import prefix_announcements, prefix_peers
from services.picker.state.prefix_announcements import Announcements
from shared.bus.codec import decode, encode
from shared.bus.columns import pack_counts, pack_hashes, server_hash
from shared.bus.connection import Bus
from shared.bus.messages import PrefixBatch, PrefixPiece, PrefixRequest
from shared.bus.subjects import Subjects
from tests.in_process import picker, serving
from tests.nats import NatsServer
from tests.protocol.collector.harness import POOL, Owner, endpoint
from tests.unit.services.picker.extproc.proxy import LEAN, body, headers, response_headers
from tests.waiting import TIMEOUT, eventually

CHAT = [(":method", "POST"), (":path", "/v1/completions")]
NAMES = [f"default/{name}" for name in "abcd"]
PROMPT = "x" * 1000
BLOCKS = 4


def ask(service: PickerService, prompt: str) -> RequestStream:
    """A request that has been routed."""
    stream = RequestStream(service.handler)
    for message in (headers(CHAT, modes=LEAN), body(f'{{"model":"m","prompt":"{prompt}"}}'.encode(), end=True)):
        list(stream.receive(message.SerializeToString()))
    return stream


def answered(stream: RequestStream, status: int, served: str = "") -> None:
    """The response begins, and names who serves."""
    list(stream.receive(response_headers(status, served=served).SerializeToString()))


def held(service: PickerService) -> dict[str, int]:
    """Blocks that each endpoint is thought to hold."""
    blocks = {name: service.view.prefixes.blocks_of(name) for name in NAMES}
    return {name: count for name, count in blocks.items() if count}


def chosen(service: PickerService) -> str:
    """The endpoint that got the last request."""
    (decision,) = service.ring.newest(1)
    assert decision.picked, decision
    return decision.layout.endpoints[decision.picked[0]].id


def counted(service: PickerService, name: str) -> float:
    return service.registry.get_sample_value(f"pointsman_picker_prefix_{name}") or 0.0


async def started(stack: AsyncExitStack, url: str, id: str, **settings: Any) -> PickerService:
    service = picker(url, id=id, **settings)
    await stack.enter_async_context(serving(service))
    await eventually(lambda: service.readiness.ready, service.readiness.reasons)
    return service


@pytest.fixture
async def pool(nats: NatsServer, owner: Owner) -> AsyncIterator[AsyncExitStack]:
    await owner.publish([endpoint(name, 8000 + at) for at, name in enumerate("abcd")])
    async with AsyncExitStack() as stack:
        yield stack


async def test_a_prompt_that_one_of_four_placed_is_found_by_the_others(nats: NatsServer, pool: AsyncExitStack) -> None:
    first, *others = [await started(pool, nats.url, f"p{number}") for number in range(4)]
    ask(first, PROMPT)
    where = chosen(first)
    await eventually(lambda: all(held(other) == {where: BLOCKS} for other in others), "the placement")
    for other in others:
        ask(other, PROMPT)
        assert chosen(other) == where
    everybody = (first, *others)
    await eventually(lambda: [counted(service, "peers") for service in everybody] == [3.0] * 4, "all heartbeats")


async def test_of_a_long_prompt_only_the_new_part_travels(nats: NatsServer, pool: AsyncExitStack) -> None:
    """A peer has placed the first nine tenths of 220 kB."""
    first, second = await started(pool, nats.url, "p1"), await started(pool, nats.url, "p2")
    known = "known " * 33_000
    stream = ask(first, known)
    where, before = chosen(first), held(first)
    answered(stream, 200)
    stream.end()
    await eventually(lambda: held(second) == before, "the placement")
    bus = await pool.enter_async_context(Bus(nats.url, name="listener"))
    sent: list[bytes] = []
    await bus.subscribe(Subjects().prefix_batch(POOL, "p2"), lambda message: sent.append(message.data))
    await bus.wait_connected(TIMEOUT)
    await eventually(lambda: sent, "its heartbeat")
    ask(second, known + "new " * 5_500)
    assert chosen(second) == where
    await eventually(lambda: held(first) == held(second) != before, "the new part")
    batches = [(decode(PrefixBatch, batch), len(batch)) for batch in sent]
    news = [(len(batch.blocks) // 8, size) for batch, size in batches if batch.servers]
    new = held(second)[where] - before[where]
    assert 0 < new < 0.11 * held(second)[where]
    assert sum(blocks for blocks, _ in news) == new
    assert sum(size for _, size in news) < 8 * new + 1000


@pytest.mark.parametrize(("status", "served", "moved"), [(500, "", {}), (200, "127.0.0.1:8003", {"default/d": BLOCKS})])
async def test_a_placement_is_withdrawn_or_moved_everywhere(
    nats: NatsServer, pool: AsyncExitStack, status: int, served: str, moved: dict[str, int]
) -> None:
    first, second = [await started(pool, nats.url, name) for name in ("p1", "p2")]
    stream = ask(first, PROMPT)
    if chosen(first) == "default/d":
        served, moved = served.replace("8003", "8000"), dict.fromkeys(["default/a"] * len(moved), BLOCKS)
    await eventually(lambda: held(second) == {chosen(first): BLOCKS}, "the speculative placement")
    answered(stream, status, served)
    await eventually(lambda: held(first) == held(second) == moved, lambda: (held(first), held(second)))


async def test_a_picker_that_starts_late_is_ready_with_all_placements(nats: NatsServer, pool: AsyncExitStack) -> None:
    first = await started(pool, nats.url, "p1")
    for number in range(200):
        ask(first, f"{number} " * 500)
    second = await started(pool, nats.url, "p2", prefix_wait=3600.0)
    assert held(second) == held(first)
    assert (counted(first, "dumps_total"), counted(second, "dumps_total")) == (0, 1)


async def test_a_picker_that_starts_waits_for_one_that_is_busy_with_dumps(
    nats: NatsServer, pool: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_announcements, "MAX_DUMPS", 1)
    monkeypatch.setattr(prefix_announcements, "IDLE", 3600.0)
    monkeypatch.setattr(prefix_announcements, "MAX_BLOCKS", 2 * BLOCKS)
    first = await started(pool, nats.url, "p1")
    for number in range(5):
        ask(first, f"{number} " * 500)
    async with Bus(nats.url, name="stranger") as stranger:
        await stranger.wait_connected(TIMEOUT)
        subject = Subjects().prefix_dump(POOL, "p1")

        async def asked(session: int = 0) -> PrefixPiece:
            request = PrefixRequest(sender="stranger", session=session)
            return decode(PrefixPiece, (await stranger.request(subject, encode(request), timeout=TIMEOUT)).data)

        piece = await asked()
        assert (piece.more, piece.busy, (await asked()).busy) == (True, False, True)
        heard: list[str] = []
        await stranger.subscribe(subject, lambda message: heard.append(decode(PrefixRequest, message.data).sender))
        second = picker(nats.url, id="p2", prefix_wait=3600.0)
        await pool.enter_async_context(serving(second))
        await eventually(lambda: heard.count("p2") >= 3, "requests of the second")
        assert not second.readiness.ready
        while piece.more:
            piece = await asked(piece.session)
        await eventually(lambda: second.readiness.ready, second.readiness.reasons)
    assert held(second) == held(first)
    assert counted(second, "dumps_total") == 1


async def test_a_dump_that_takes_too_long_ends_and_what_is_missing_is_asked_for_again(
    nats: NatsServer, pool: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await started(pool, nats.url, "p1")
    ask(first, PROMPT)
    monkeypatch.setattr(prefix_sharing, "MAX_SECONDS", 0.0)
    second = await started(pool, nats.url, "p2", prefix_wait=0.5)
    assert (held(second), counted(second, "dumps_total")) == ({}, 0)
    monkeypatch.setattr(prefix_sharing, "MAX_SECONDS", 60.0)
    await eventually(lambda: held(second) == held(first), lambda: (held(first), held(second)))


async def test_what_was_missed_while_nats_was_away_comes_afterwards(nats: NatsServer, pool: AsyncExitStack) -> None:
    first, second = [await started(pool, nats.url, name) for name in ("p1", "p2")]
    await eventually(lambda: counted(first, "peers") == counted(second, "peers") == 1, "each other")
    dumps = counted(second, "dumps_total")
    nats.kill()
    await eventually(lambda: not first.bus.connected, "the end of the connection")
    for number in range(20):
        ask(first, f"{number} " * 500)
        ask(second, f"other {number} " * 500)
        await asyncio.sleep(0.03)
    await nats.start()
    await eventually(lambda: held(first) == held(second), lambda: (held(first), held(second)))
    assert counted(first, "gaps_total") + counted(second, "gaps_total") > 0
    total = counted(first, "dumps_total"), counted(second, "dumps_total")
    assert total == (0, dumps), "the batches themselves are repeated"


async def test_pickers_that_had_no_peer_for_long_find_each_other_while_they_are_busy(
    nats: NatsServer, pool: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (prefix_sharing, prefix_peers):
        monkeypatch.setattr(module, "LISTENING", 1.0)
    skip, skipped = Announcements.skip, set[Announcements]()

    def counting(mine: Announcements) -> None:
        skipped.add(mine)
        skip(mine)

    monkeypatch.setattr(Announcements, "skip", counting)
    first, second = [await started(pool, nats.url, name) for name in ("p1", "p2")]
    both, numbers = (first, second), count()

    async def meet(known: float) -> bool:
        """Both always have something to tell, until they know so many peers."""
        for service in both:
            ask(service, f"{next(numbers)} " * 500)
        await asyncio.sleep(0.01)
        return all(counted(service, "peers") == known for service in both)

    async def lonely() -> bool:
        """Both know of no peer, and have had something to tell since."""
        return await meet(0) and len(skipped) == len(both)

    await eventually(lambda: meet(1), "each other")
    nats.kill()
    skipped.clear()
    await eventually(lonely, "nobody")
    await nats.start()
    await eventually(lambda: meet(1), "each other again")
    await eventually(lambda: held(first) == held(second), lambda: (held(first), held(second)))
    assert counted(first, "dumps_total") > 0, "what nobody listened to comes in dumps"


async def test_a_picker_cant_speak_for_another(nats: NatsServer, pool: AsyncExitStack) -> None:
    service = await started(pool, nats.url, "p1")
    async with Bus(nats.url, name="stranger") as stranger:
        await stranger.wait_connected(TIMEOUT)
        batch = PrefixBatch(sender="p2", run=1, sequence=1, hashing="1: whatever")
        await stranger.publish(Subjects().prefix_batch(POOL, "p3"), encode(batch))
        await eventually(lambda: "it claims to be from 'p2'" in service.readiness.notes().get("bus", ""), "the note")
    assert counted(service, "peers") == 0


async def test_a_batch_forged_in_anothers_name_is_found_and_undone(
    nats: NatsServer, pool: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_peers, "DIFFERENT", 0.1)
    first, second = [await started(pool, nats.url, name) for name in ("p1", "p2")]
    await eventually(lambda: counted(first, "peers") == counted(second, "peers") == 1, "each other")
    ask(first, PROMPT)
    await eventually(lambda: held(second) == held(first) != {}, "the placement")
    async with Bus(nats.url, name="stranger") as stranger:
        await stranger.wait_connected(TIMEOUT)
        forged = PrefixBatch(
            sender="p1",
            run=first.prefixes.mine.run,
            sequence=first.prefixes.mine.sequence + 1,
            hashing=first.prefixes.hashing,
            servers=pack_hashes([server_hash(endpoint("a", 8000))]),
            withdrawn=b"\0",
            counts=pack_counts([500]),
            blocks=pack_hashes(list(range(500))),
        )
        await stranger.publish(Subjects().prefix_batch(POOL, "p1"), encode(forged))
        await eventually(lambda: held(second).get("default/a", 0) >= 500, "the forged placement")
    ask(first, "another " * 500)
    repaired = "pointsman_picker_view_repairs_total"
    await eventually(lambda: second.registry.get_sample_value(repaired, {"part": "prefixes"}) == 1.0, "the repair")
    await eventually(lambda: held(second) == held(first), lambda: (held(first), held(second)))


async def test_a_picker_that_hashes_differently_is_ignored_and_told(nats: NatsServer, pool: AsyncExitStack) -> None:
    service = await started(pool, nats.url, "p1")
    async with Bus(nats.url, name="stranger") as stranger:
        await stranger.wait_connected(TIMEOUT)
        batch = PrefixBatch(sender="p2", run=1, sequence=1, hashing="9: of another kind")
        await stranger.publish(Subjects().prefix_batch(POOL, "p2"), encode(batch))
        await eventually(lambda: counted(service, "incompatible_batches_total") == 1, "the batch")
    assert "'p2': it hashes prompts as '9: of another kind'" in service.readiness.notes()["prefixes"]
    assert counted(service, "peers") == 0


async def test_a_picker_waits_no_longer_than_it_is_told_for_one_that_doesnt_answer(
    nats: NatsServer, pool: AsyncExitStack
) -> None:
    async with Bus(nats.url, name="hangs") as hanging:
        await hanging.wait_connected(TIMEOUT)
        await hanging.subscribe(Subjects().prefix_peers(POOL), lambda _: None)
        await hanging.subscribe(Subjects().prefix_dump(POOL, "p0"), lambda _: None)
        service = picker(nats.url, id="p1", prefix_wait=0.5)
        async with serving(service):
            reasons: set[str] = set()

            def ready() -> bool:
                reasons.update(service.readiness.reasons())
                return service.readiness.ready

            await eventually(ready, service.readiness.reasons)
            assert "prefixes" in reasons


async def test_a_picker_doesnt_ask_endless_invented_ones_for_their_placements(
    nats: NatsServer, pool: AsyncExitStack
) -> None:
    heard: list[PrefixBatch] = []
    invented = count()
    async with Bus(nats.url, name="inventor") as inventor:
        await inventor.wait_connected(TIMEOUT)

        async def answer(reply: str) -> None:
            known = PrefixBatch(
                sender=f"p{next(invented)}", run=1, sequence=0, hashing=heard[-1].hashing, complete=True
            )
            await inventor.publish(reply, encode(known))

        tasks = set[asyncio.Task[None]]()
        await inventor.subscribe(
            Subjects().prefix_peers(POOL),
            lambda message: tasks.add(asyncio.create_task(answer(message.reply))) if heard else None,
        )
        await inventor.subscribe(
            Subjects().prefix_batch(POOL, "picker"), lambda message: heard.append(decode(PrefixBatch, message.data))
        )
        async with serving(picker(nats.url, id="picker")):
            await eventually(lambda: heard and heard[-1].complete, "it has asked enough of them")
    assert next(invented) >= prefix_sharing.MAX_ASKED


async def test_nothing_is_shared_where_that_is_switched_off_or_nothing_is_hashed(
    nats: NatsServer, pool: AsyncExitStack
) -> None:
    first = await started(pool, nats.url, "p1")
    second = await started(pool, nats.url, "p2", share_prefixes=False)
    async with Bus(nats.url, name="listener") as listener:
        heard: list[str] = []
        await listener.subscribe(Subjects().prefix_batches(POOL), lambda message: heard.append(message.subject))
        ask(second, PROMPT)
        await eventually(lambda: len(heard) >= 3, "heartbeats")
    assert set(heard) == {Subjects().prefix_batch(POOL, "p1")}
    assert held(second)
    assert not held(first)
