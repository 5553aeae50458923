"""Facts from their owner to their readers over a real server, undisturbed. Disturbed: test_faults.py."""

import asyncio
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from shared.bus import jetstream as js
from shared.bus.codec import decode, decode_fact
from shared.bus.connection import Bus
from shared.bus.errors import JetStreamError, LostLeadership
from shared.bus.facts import Reset
from shared.bus.messages import FactEnvelope
from shared.bus.publisher import FactPublisher
from shared.bus.subjects import fact_key, pool_token
from shared.model import Configuration, Endpoint, Fact, Model, ModelRewrite, Objective, Pool
from tests.nats import NatsServer
from tests.protocol.bus.conftest import POOL, SUBJECTS, Connect, endpoints, leading, numbered, reading
from tests.waiting import TIMEOUT, eventually


async def test_what_the_owner_wants_is_what_the_reader_sees(connect: Connect) -> None:
    publisher = FactPublisher(await connect("watcher"), SUBJECTS, "w1")
    facts: dict[str, Fact] = {
        fact_key(POOL, fact): fact
        for fact in (
            Pool(name="llama", selector={"app": "vllm"}),
            Objective(name="premium", priority=10),
            ModelRewrite(name="rewrite", rules=()),
            Model(name="model", model_name="llama"),
            Configuration(text="kind: EndpointPickerConfig", origin="config.yaml"),
            Endpoint(id="default/vllm-0:8000", name="vllm-0", address="fd00::1", port=8000, labels={"a": "b"}),
        )
    }
    async with leading(publisher), reading(await connect("picker")) as (replica, view):
        publisher.update(facts, [POOL])
        await eventually(lambda: view.facts == facts, what=lambda: (publisher, replica))
        assert view.events == [Reset(facts)]
        assert replica.facts() == facts
        assert replica.readiness() is None
        await eventually(lambda: replica.age() < 1.0)


async def test_readers_know_how_long_the_source_hasnt_confirmed_the_facts(connect: Connect) -> None:
    age = 0.0
    publisher = FactPublisher(await connect("watcher"), SUBJECTS, "w1", synced_interval=0.05, age=lambda _: age)
    async with leading(publisher), reading(await connect("picker")) as (replica, _):
        publisher.update(endpoints("a"), [POOL])
        await eventually(lambda: replica.synced)
        await eventually(lambda: replica.source_age() < 2.0)
        age = 300.0
        await eventually(lambda: replica.source_age() >= 300.0 and replica.age() < 2.0)
        age = 0.0
        await eventually(lambda: replica.source_age() < 2.0)


@pytest.mark.parametrize(("window", "count"), [(1, 3), (2, 5), (3, 6)])
async def test_facts_go_out_in_windows_each_of_them_once(connect: Connect, window: int, count: int) -> None:
    publisher = FactPublisher(await connect("watcher"), SUBJECTS, "w1", ack_timeout=30.0, window=window)
    facts = endpoints(*map(str, range(count)))
    async with leading(publisher), reading(await connect("picker")) as (_, view):
        publisher.update(facts, [POOL])
        await eventually(lambda: view.facts == facts)
        await eventually(lambda: publisher.published, lambda: publisher)
        assert publisher.written == count


async def test_a_pool_that_is_removed_leaves_nothing_behind(connect: Connect) -> None:
    bus = await connect()
    publisher = FactPublisher(bus, SUBJECTS, "w1", check_interval=0.0)
    other = pool_token("default", "other")
    async with leading(publisher):
        publisher.update(endpoints("a"), [POOL, other])
        await eventually(lambda: publisher.published, lambda: publisher)
        publisher.update(endpoints("a"), [POOL])
        await eventually(lambda: publisher.published, lambda: publisher)
        found: list[js.Stored] = await js.snapshot(bus, "endpoints", "$KV.endpoints.>")
        live = {stored.subject for stored in found if js.OPERATION not in stored.headers}
        assert live == {
            "$KV.endpoints.epoch",
            f"$KV.endpoints.{POOL}.synced",
            *(SUBJECTS.fact(key) for key in endpoints("a")),
        }


async def test_a_pool_that_the_new_leader_doesnt_know_stays_as_it_is_and_gets_older(connect: Connect) -> None:
    other = pool_token("default", "other")
    theirs: dict[str, Fact] = {fact_key(other, fact): fact for fact in endpoints("x", "y").values()}
    first = FactPublisher(await connect(), SUBJECTS, "w1", age=lambda _: 40.0)
    async with leading(first):
        first.update(endpoints("a") | theirs, [POOL, other])
        await eventually(lambda: first.published, lambda: first)
    second = FactPublisher(await connect(), SUBJECTS, "w2", synced_interval=0.05, check_interval=0.1)
    async with leading(second), reading(await connect(), other) as (replica, view):
        second.update(endpoints("b"), [POOL], kept=[other])
        await eventually(lambda: second.published, lambda: second)
        await eventually(lambda: replica.synced and replica.epoch == second.epoch and replica.age() < 0.5)
        assert view.facts == theirs
        await eventually(lambda: replica.source_age() >= 40.2)
        view.clear()
        second.update(endpoints("b") | {key: theirs[key] for key in list(theirs)[:1]}, [POOL, other])
        await eventually(lambda: len(view.facts) == 1)
        await eventually(lambda: replica.source_age() < 2.0)
        assert second.repaired == 0


async def test_nothing_is_published_before_the_owner_knows_its_facts(connect: Connect) -> None:
    """A standby that has just taken over must not clear what the former leader published."""
    first = FactPublisher(await connect(), SUBJECTS, "w1")
    second = FactPublisher(await connect(), SUBJECTS, "w2")
    async with reading(await connect()) as (replica, view):
        async with leading(first):
            first.update(endpoints("a"), [POOL])
            await eventually(lambda: view.facts == endpoints("a"))
        async with leading(second):
            await asyncio.sleep(0.2)
            assert second.readiness() == "no facts to publish yet"
            assert view.facts == endpoints("a")
            second.update(endpoints("b"), [POOL])
            await eventually(lambda: view.facts == endpoints("b"), what=lambda: replica)


async def test_a_leader_that_was_replaced_is_refused_and_told(connect: Connect) -> None:
    first = FactPublisher(await connect(), SUBJECTS, "w1")
    second = FactPublisher(await connect(), SUBJECTS, "w2")
    async with reading(await connect()) as (replica, view), leading(first) as former:
        first.update(endpoints("a"), [POOL])
        await eventually(lambda: replica.synced)
        async with leading(second):
            second.update(endpoints("b"), [POOL])
            await eventually(lambda: second.published, lambda: second)
            first.update(endpoints("a", "late"), [POOL])
            await asyncio.wait([former], timeout=TIMEOUT)
            with pytest.raises(LostLeadership, match="'w2' has owned bucket 'endpoints'"):
                former.result()
            await eventually(lambda: view.facts == endpoints("b"))
            assert not first.published
            found: list[js.Stored] = await js.snapshot(await connect(), "endpoints", SUBJECTS.fact(f"{POOL}.>"))
            live = {stored.subject for stored in found if js.OPERATION not in stored.headers}
            assert live == {SUBJECTS.fact(key) for key in [*endpoints("b"), f"{POOL}.synced"]}


async def test_a_leader_without_its_lease_writes_nothing_more(connect: Connect) -> None:
    held = True
    publisher = FactPublisher(await connect(), SUBJECTS, "w1", is_leader=lambda: held)
    async with reading(await connect()) as (replica, view), leading(publisher) as leader:
        publisher.update(endpoints("a"), [POOL])
        await eventually(lambda: replica.synced)
        held = False
        publisher.update(endpoints("b"), [POOL])
        await asyncio.wait([leader], timeout=TIMEOUT)
        with pytest.raises(LostLeadership, match="doesn't hold the lease"):
            leader.result()
        assert view.facts == endpoints("a")


async def test_a_reader_that_comes_later_or_when_the_owner_is_gone_has_the_same_view(connect: Connect) -> None:
    facts = numbered(700)
    publisher = FactPublisher(await connect(), SUBJECTS, "w1")
    async with leading(publisher):
        publisher.update(facts, [POOL])
        await eventually(lambda: publisher.published, lambda: publisher)
    async with reading(await connect()) as (replica, view):
        await eventually(lambda: view.facts == facts, what=lambda: replica)
        assert [type(event) for event in view.events] == [Reset]
        assert replica.age() == float("inf"), "no owner has confirmed it"


async def test_a_reader_waits_for_a_bucket_that_is_not_there_and_does_not_make_one(connect: Connect) -> None:
    bus = await connect()
    async with reading(bus) as (replica, view):
        await eventually(lambda: replica.readiness() == "bucket 'endpoints' is missing", what=lambda: replica)
        with pytest.raises(JetStreamError, match="stream not found"):
            await js.api(bus, "STREAM.INFO.KV_endpoints", {})
        publisher = FactPublisher(await connect(), SUBJECTS, "w1")
        async with leading(publisher):
            publisher.update(endpoints("a"), [POOL])
            await eventually(lambda: view.facts == endpoints("a"))


async def test_anyone_can_read_the_bucket_with_a_stock_client(connect: Connect, server: NatsServer) -> None:
    publisher = FactPublisher(await connect(), SUBJECTS, "w1")
    async with leading(publisher):
        publisher.update(endpoints("a"), [POOL])
        await eventually(lambda: publisher.published, lambda: publisher)
        client = await nats.connect(server.url)
        bucket = await client.jetstream().key_value("endpoints")
        (key,) = endpoints("a")
        stream = await client.jetstream().stream_info("KV_endpoints", subjects_filter=">")
        assert set(stream.state.subjects or ()) == {
            f"$KV.endpoints.{each}" for each in ("epoch", f"{POOL}.synced", key)
        }
        value = (await bucket.get(key)).value
        assert value is not None
        assert decode_fact(decode(FactEnvelope, value).fact) == endpoints("a")[key]
        assert stream.config.max_msgs_per_subject == 1
        await client.close()


async def test_a_delete_carries_epoch_and_sequence_and_is_gone_after_its_time(connect: Connect) -> None:
    bus = await connect()
    publisher = FactPublisher(bus, SUBJECTS, "w1", ack_timeout=TIMEOUT, marker_ttl=1)
    (key,) = endpoints("a")
    async with leading(publisher):
        publisher.update(endpoints("a"), [POOL])
        await eventually(lambda: publisher.published, lambda: publisher)
        heard: list[Msg] = []
        listener = await connect()
        await listener.subscribe(SUBJECTS.fact(key), heard.append)
        await listener.request("$JS.API.INFO")  # a round trip: the subscription is known to the server
        publisher.update({}, [POOL])
        await eventually(lambda: heard)
        headers = heard[0].headers
        assert headers is not None
        assert headers[js.OPERATION] == "PURGE"
        assert headers["Pointsman-Epoch"] == str(publisher.epoch)
        assert int(headers["Pointsman-Sequence"]) == 2

        async def gone() -> bool:
            return await js.last(bus, "endpoints", SUBJECTS.fact(key)) is None

        await eventually(gone, "the end of its time")


async def test_what_somebody_writes_by_hand_is_skipped_counted_and_repaired(connect: Connect) -> None:
    publisher = FactPublisher(
        await connect(), SUBJECTS, "w1", ack_timeout=TIMEOUT, check_interval=0.2, synced_interval=0.1
    )
    stranger = await connect()
    async with leading(publisher), reading(await connect()) as (replica, view):
        publisher.update(endpoints("a", "b"), [POOL])
        await eventually(lambda: replica.synced)
        a, b = endpoints("a", "b")
        with capture_logs() as lines:
            await js.put(stranger, SUBJECTS.fact(a), b"garbage", timeout=10.0)
            await js.put(stranger, SUBJECTS.fact(b), b"", headers={js.OPERATION: "DEL"}, timeout=10.0)
            await js.put(stranger, SUBJECTS.fact(f"{POOL}.endpoint.ghost"), b"garbage", timeout=10.0)
            await eventually(lambda: replica.malformed.total >= 3)
        assert view.facts == endpoints("a", "b")
        assert [line["sender"] for line in lines if line["event"] == "bus.message.malformed"] == [POOL]
        await eventually(lambda: publisher.repaired >= 3, what=lambda: publisher)
        await eventually(lambda: publisher.published, lambda: publisher)
        async with reading(await connect()) as (late, fresh):
            await eventually(lambda: fresh.facts == endpoints("a", "b"), what=lambda: late)
            assert late.malformed.total == 0


async def test_the_bucket_is_read_again_only_where_somebody_else_has_written_to_it(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a bucket of thousands of facts nothing else would cost as much while nothing changes."""
    publisher = FactPublisher(
        await connect(), SUBJECTS, "w1", ack_timeout=TIMEOUT, check_interval=0.0, synced_interval=0.02
    )
    stranger, reads = await connect(), list[str]()
    snapshot = js.snapshot

    async def counted(bus: Bus, bucket: str, subjects: str, **options: Any) -> list[Any]:
        reads.append(subjects)
        return await snapshot(bus, bucket, subjects, **options)

    async with leading(publisher):
        publisher.update(endpoints("a", "b"), [POOL])
        await eventually(lambda: publisher.published, lambda: publisher)
        monkeypatch.setattr(js, "snapshot", counted)
        publisher.update(endpoints("a", "b", "c"), [POOL])
        await asyncio.sleep(0.2)
        assert not reads
        await js.put(stranger, SUBJECTS.fact(f"{POOL}.endpoint.ghost"), b"garbage", timeout=10.0)
        await eventually(lambda: publisher.repaired == 1, what=lambda: publisher)
        await js.api(stranger, "STREAM.PURGE.KV_endpoints", {"filter": SUBJECTS.fact(next(iter(endpoints("b"))))})
        await eventually(lambda: publisher.repaired == 2, what=lambda: publisher)


async def test_a_fact_that_is_kept_only_since_the_bucket_is_being_read_stays(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, (key,) = await connect(), endpoints("b")
    async with leading(first := FactPublisher(await connect(), SUBJECTS, "w1", ack_timeout=TIMEOUT)):
        first.update(endpoints("a", "b"), [POOL])
        await eventually(lambda: first.published, lambda: first)
    second = FactPublisher(await connect(), SUBJECTS, "w2", ack_timeout=TIMEOUT)
    snapshot = js.snapshot

    async def meanwhile(*args: Any, **options: Any) -> list[Any]:
        found = await snapshot(*args, **options)
        second.update(endpoints("a"), [POOL], kept=[key])
        return found

    monkeypatch.setattr(js, "snapshot", meanwhile)
    second.update(endpoints("a"), [POOL])
    async with leading(second):
        await eventually(lambda: second.published, lambda: second)
    assert await js.last(bus, "endpoints", SUBJECTS.fact(key)) is not None
    assert second.deleted == 0


BUCKET = js.Bucket(name="facts", storage="file", republish="stored.>", message_ttl=True)


async def test_a_bucket_that_is_not_as_needed_is_adapted_and_the_rest_of_it_stays(bus: Bus) -> None:
    """Somebody made it with `nats kv add`, and limited its size."""
    plain = {
        "name": "KV_facts",
        "subjects": ["$KV.facts.>"],
        "storage": "file",
        "max_msgs_per_subject": 5,
        "max_bytes": 1_000_000,
        "discard": "new",
        "num_replicas": 1,
        "deny_delete": True,
        "allow_rollup_hdrs": True,
    }
    await js.api(bus, "STREAM.CREATE.KV_facts", plain)
    assert (await js.ensure_bucket(bus, BUCKET)).changed
    config = (await js.api(bus, "STREAM.INFO.KV_facts", {})).config
    assert config["republish"]["dest"] == "stored.>"
    assert config["allow_direct"]
    assert config["allow_msg_ttl"]
    assert config["max_msgs_per_subject"] == 1
    assert config["max_bytes"] == 1_000_000
    assert not (await js.ensure_bucket(bus, BUCKET)).changed


async def test_a_bucket_with_another_storage_is_refused_by_the_server(bus: Bus) -> None:
    await js.ensure_bucket(bus, js.Bucket(name="facts", storage="memory"))
    with pytest.raises(JetStreamError, match="storage"):
        await js.ensure_bucket(bus, BUCKET)
