"""Messages that somebody forged, over a real server: who owns the facts, and the views of readers, recover by
themselves, and say where it came from."""

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from shared.bus import jetstream as js
from shared.bus.candidacy import Candidacy
from shared.bus.codec import encode, encode_fact
from shared.bus.connection import Bus
from shared.bus.frame_columns import FrameContent
from shared.bus.frame_publisher import FramePublisher
from shared.bus.frame_reader import FrameReader
from shared.bus.membership import Membership
from shared.bus.messages import Candidate, Epoch, FactEnvelope, Frame, Member, Synced
from shared.bus.publisher import FactPublisher
from shared.bus.subjects import EPOCH, fact_key, pool_token, synced_key
from shared.limits import BusLimits
from shared.model import Endpoint, Fact
from tests.nats import NatsServer
from tests.protocol.bus.conftest import POOL, SUBJECTS, Connect, endpoints, leading, reading
from tests.protocol.watcher.harness import endpoints_text, reader, replace, watcher
from tests.waiting import TIMEOUT, eventually

FORGED = 2**64 - 1


async def forge_epoch(bus: Bus, epoch: int = FORGED) -> None:
    await js.put(bus, SUBJECTS.fact(EPOCH), encode(Epoch(epoch=epoch, owner="mallory")), timeout=10.0)


@pytest.mark.parametrize("when", ["before the start", "while it leads"])
async def test_watchers_write_over_a_forged_epoch_and_name_its_owner(
    server: NatsServer, bus: Bus, tmp_path: Path, when: str
) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(endpoints_text("a"))
    async with reader(server.url) as seen:
        if when == "before the start":
            async with watcher(server.url, endpoints_file=str(path)):
                await seen.sees("a")
            await forge_epoch(bus)
        async with watcher(server.url, endpoints_file=str(path)) as service:
            await seen.sees("a")
            await eventually(lambda: service.leadership.publisher.published, "published")
            if when == "while it leads":
                await forge_epoch(bus)
            replace(path, endpoints_text("a", "b"))
            await seen.sees("a", "b")
            note = await eventually(lambda: service.readiness.notes().get("bus", ""), "a note")
            assert f"from 'mallory': epoch {FORGED} can't be" in note
            assert seen.replica.epoch <= (time.time() + 60) * 1000


async def test_an_epoch_that_can_be_is_counted_on_from(connect: Connect) -> None:
    """Of an owner whose clock is an hour ahead."""
    ahead = int((time.time() + 3600) * 1000)
    async with reading(await connect()) as (_, view):
        async with leading(first := FactPublisher(await connect(), SUBJECTS, "w1")):
            first.update(endpoints("a"), [POOL])
            await eventually(lambda: first.published, lambda: first)
        await forge_epoch(await connect(), ahead)
        async with leading(second := FactPublisher(await connect(), SUBJECTS, "w2")):
            second.update(endpoints("b"), [POOL])
            await eventually(lambda: view.facts == endpoints("b"), lambda: second)
            assert second.epoch == ahead + 1


async def test_readers_keep_to_the_owner_whatever_epochs_others_claim(connect: Connect) -> None:
    stranger = await connect("stranger")
    forged = Endpoint(id="default/a", name="a", address="10.6.6.6", port=1)
    (key,) = endpoints("a")
    envelope = encode(FactEnvelope(epoch=FORGED, sequence=1, fact=msgspec.Raw(encode_fact(forged))))
    synced = encode(Synced(epoch=FORGED, sequence=2, count=1, digest=5))
    owner = FactPublisher(await connect(), SUBJECTS, "w")
    async with reading(await connect()) as (replica, view), leading(owner):
        owner.update(endpoints("a", "b"), [POOL])
        await eventually(lambda: view.facts == endpoints("a", "b"), lambda: owner)
        with capture_logs() as logs:
            for subject in (SUBJECTS.fact, SUBJECTS.republished):
                await stranger.publish(subject(key), envelope)
                await stranger.publish(subject(synced_key(POOL)), synced)
            stored, published = replica.malformed.implausible, replica.malformed
            await eventually(lambda: stored.total >= 2 and published.total == 2, lambda: replica)
        owner.update(endpoints("a", "b", "c"), [POOL])
        await eventually(lambda: view.facts == endpoints("a", "b", "c") and replica.age() < 1.0, lambda: replica)
        assert replica.epoch == owner.epoch
        senders = [line["sender"] for line in logs if line["event"] == "bus.message.implausible"]
        assert senders == [f"{POOL}, epoch {FORGED}"], "a line a minute"
        async with reading(await connect()) as (_, late):
            await eventually(lambda: late.facts == endpoints("a", "b", "c"), "a reader that comes later")


async def test_a_frame_from_the_future_makes_nothing_that_its_sender_says_look_old(connect: Connect) -> None:
    shift = 0.0

    def clock() -> float:
        return time.monotonic() + shift

    seen: list[tuple[Frame, float]] = []
    stranger, bus = await connect("stranger"), await connect()
    reader = FrameReader(bus, SUBJECTS, POOL, lambda *senders: seen.append(senders), clock=clock)
    publisher = FramePublisher(await connect(), SUBJECTS, POOL, "c1", clock=clock)
    await reader.start()
    await bus.request("$JS.API.INFO")  # a round trip: the subscription is known to the server

    async def heard() -> tuple[Frame, float]:
        await eventually(lambda: seen, lambda: reader)
        return seen.pop()

    async def sent() -> tuple[Frame, float]:
        await publisher.publish(0, FrameContent(ids=("default/a",)))
        return await heard()

    try:
        genuine, _ = await sent()
        shift = 5.0  # the usual way is known by now
        for ahead in (11.0, 1e6, 1e300):
            forged = structs.replace(genuine, sent=genuine.sent + shift + ahead, sequence=2**62)
            await stranger.publish(SUBJECTS.frame(POOL, "c1", 0), encode(forged))
        await eventually(lambda: reader.malformed.implausible.total == 3, lambda: reader)
        assert not seen
        frame, extra_age = await sent()
        assert frame.sequence == genuine.sequence + 1
        assert extra_age < 2.0
        assert "from 'c1': it was sent at a time" in (reader.malformed.note() or "")
    finally:
        await publisher.close()
        await reader.close()


async def test_a_heartbeat_a_candidacy_and_a_frame_are_of_whom_their_subjects_name(connect: Connect) -> None:
    bus, stranger = await connect(), await connect("stranger")
    frames: list[Frame] = []
    reader = FrameReader(bus, SUBJECTS, POOL, lambda frame, _: frames.append(frame))
    members = Membership(bus, SUBJECTS, POOL, "collector", None, lambda _: None)
    candidacy = Candidacy(bus, SUBJECTS, "watcher", "w1", lambda: (1,))

    def messages(id: str) -> list[tuple[str, bytes]]:
        """Of `one`, under subjects of `id`."""
        return [
            (SUBJECTS.frame(POOL, id, 0), encode(Frame(sender="one", sent=1.0, sequence=1, run=1, ids=()))),
            (SUBJECTS.member(POOL, "collector", id), encode(Member(id="one", tier="collector", sent=1.0))),
            (SUBJECTS.candidate("watcher", id), encode(Candidate(owner="one", fitness=(2,)))),
        ]

    async with AsyncExitStack() as stack:
        for part in (reader, members, candidacy):
            await part.start()
            stack.push_async_callback(part.close)
        await bus.request("$JS.API.INFO")  # a round trip: the subscriptions are known to the server
        for subject, message in messages("two"):
            await stranger.publish(subject, message)
        await eventually(lambda: bus.malformed.conflicting.total == 3, lambda: bus.malformed.conflicting)
        assert (frames, members.ids, candidacy.preferred()) == ([], (), None)
        for subject, message in messages("one"):
            await stranger.publish(subject, message)
        await eventually(lambda: frames and members.ids == ("one",) and candidacy.preferred() == "one", "all three")


async def test_a_bucket_full_of_junk_is_read_in_small_pages_and_cleared(connect: Connect) -> None:
    """Somebody has stored what no process is to hold in memory at once."""
    stranger, count = await connect("stranger"), 40
    async with leading(owner := FactPublisher(await connect(), SUBJECTS, "w1")):
        owner.update(endpoints("a"), [POOL])
        await eventually(lambda: owner.published, lambda: owner)
    for number in range(count):
        await js.put(stranger, SUBJECTS.fact(f"{POOL}.endpoint.{number}"), bytes(1_000_000), timeout=10.0)
    sizes: list[int] = []
    request_many = stranger.request_many

    async def measured(*args: Any, last: Callable[[Msg], object], **options: Any) -> Msg:
        sizes.append(0)

        def counted(answer: Msg) -> object:
            sizes[-1] += len(answer.data)
            return last(answer)

        return await request_many(*args, last=counted, **options)

    stranger.request_many = measured  # type: ignore[method-assign]
    found = await js.snapshot(stranger, "endpoints", SUBJECTS.fact(">"), read=lambda stored: len(stored.data))
    assert sum(found) > count * 1_000_000
    assert max(sizes) < js.PAGE_BYTES + 2**20
    async with leading(owner := FactPublisher(await connect(), SUBJECTS, "w2", ack_timeout=TIMEOUT)):
        owner.update(endpoints("a"), [POOL])
        await eventually(lambda: owner.published, lambda: owner)
        assert owner.deleted == count


async def test_an_owner_clears_more_junk_than_it_may_hold_also_from_a_pool_that_it_keeps(connect: Connect) -> None:
    """Keys that no pool can have lie in the kept one: their content looks like facts."""
    other, stranger = pool_token("default", "other"), await connect("stranger")
    theirs: dict[str, Fact] = {fact_key(other, fact): fact for fact in endpoints("x", "y").values()}
    async with leading(first := FactPublisher(await connect(), SUBJECTS, "w1")):
        first.update(endpoints("a") | theirs, [POOL, other])
        await eventually(lambda: first.published, lambda: first)
    fact = encode_fact(next(iter(theirs.values())))
    for number in range(30):
        envelope = encode(FactEnvelope(epoch=1, sequence=number, fact=msgspec.Raw(fact)))
        await js.put(stranger, SUBJECTS.fact(f"{other}.junk-{number}"), envelope, timeout=TIMEOUT)
    bus = await connect("w2", limits=BusLimits(max_fact_memory=10_000))
    async with leading(second := FactPublisher(bus, SUBJECTS, "w2", synced_interval=0.05)):
        second.update(endpoints("a"), [POOL], kept=[other])
        await eventually(lambda: second.published, lambda: second)
        assert second.deleted == 30
    async with reading(await connect(), other) as (_, view):
        await eventually(lambda: view.facts == theirs, lambda: second)
