"""What the bus takes for granted about nats-server, each statement tried on the real one."""

import asyncio
import json
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg

from shared.bus import Bus, JetStreamError, NoResponders, RequestTimeout, WrongLastSequence
from shared.bus import jetstream as js
from tests.nats import NatsServer
from tests.protocol.bus.conftest import Connect
from tests.protocol.bus.helpers import until

FACTS = js.Bucket(name="facts", storage="file", republish="stored.>", message_ttl=True)
EPHEMERAL = js.Bucket(name="ephemeral", storage="memory", ttl=1.0, deletable=True)
EPOCH = "$KV.facts.epoch"


def subject(key: str) -> str:
    return f"$KV.facts.{key}"


def fence(revision: int) -> dict[str, str]:
    return {js.EXPECTED_SEQUENCE: str(revision), js.EXPECTED_SUBJECT: EPOCH}


async def put(bus: Bus, key: str, value: bytes = b"x", headers: dict[str, str] | None = None) -> int:
    return await js.put(bus, subject(key), value, headers=headers, timeout=10.0)


async def keys(bus: Bus, bucket: js.Bucket = FACTS) -> list[str]:
    found = await js.snapshot(bus, bucket.name, f"$KV.{bucket.name}.>")
    return [stored.subject.removeprefix(f"$KV.{bucket.name}.") for stored in found]


async def until_keys_are(bus: Bus, wanted: list[str], bucket: js.Bucket = FACTS, timeout: float = 6.0) -> None:
    async with asyncio.timeout(timeout):
        while await keys(bus, bucket) != wanted:  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(0.02)


@pytest.fixture
async def facts(bus: Bus) -> Bus:
    await js.ensure_bucket(bus, FACTS)
    return bus


# Republishing


async def test_the_republish_subject_shows_what_was_stored_and_the_raw_one_also_what_was_refused(
    facts: Bus, connect: Connect
) -> None:
    listener = await connect()
    stored: list[Msg] = []
    raw: list[Msg] = []
    await listener.subscribe("stored.>", stored.append)
    await listener.subscribe("$KV.facts.>", raw.append)
    await listener.request("$JS.API.INFO")
    revision = await put(facts, "epoch")
    await js.put(facts, subject("a"), b"stored", headers=fence(revision), timeout=10.0)
    with pytest.raises(WrongLastSequence):
        await js.put(facts, subject("a"), b"refused", headers=fence(revision + 7), timeout=10.0)
    await put(facts, "last")
    await until(lambda: len(stored) == 3 and len(raw) == 4)
    assert [(message.subject, message.data) for message in stored] == [
        ("stored.epoch", b"x"),
        ("stored.a", b"stored"),
        ("stored.last", b"x"),
    ]
    assert b"refused" in [message.data for message in raw]


async def test_a_republished_message_keeps_its_headers_and_names_its_revision(facts: Bus, connect: Connect) -> None:
    listener = await connect()
    stored: list[Msg] = []
    await listener.subscribe("stored.>", stored.append)
    await listener.request("$JS.API.INFO")
    revision = await put(facts, "a", headers={"Pointsman-Epoch": "7"})
    await until(lambda: stored)
    headers = stored[0].headers
    assert headers is not None
    assert headers["Pointsman-Epoch"] == "7"
    assert headers["Nats-Sequence"] == str(revision)


# Fencing


async def test_a_write_is_refused_once_the_fence_key_has_another_revision(facts: Bus) -> None:
    old = await put(facts, "epoch", b"1")
    await js.put(facts, subject("a"), b"of the first", headers=fence(old), timeout=10.0)
    new = await put(facts, "epoch", b"2")
    with pytest.raises(WrongLastSequence) as refused:
        await js.put(facts, subject("a"), b"of the former", headers=fence(old), timeout=10.0)
    assert refused.value.error_code == js.WRONG_LAST_SEQUENCE == 10071
    await js.put(facts, subject("a"), b"of the second", headers=fence(new), timeout=10.0)
    found = await js.last(facts, "facts", subject("a"))
    assert found is not None
    assert found.data == b"of the second"


async def test_fenced_writes_can_be_pipelined_on_one_replica(facts: Bus) -> None:
    revision = await put(facts, "epoch")
    await asyncio.gather(
        *(js.put(facts, subject(f"k.{n}"), b"x", headers=fence(revision), timeout=2.0) for n in range(500))
    )
    assert len(await keys(facts)) == 501


async def test_a_fenced_delete_is_refused_like_any_write(facts: Bus) -> None:
    revision = await put(facts, "epoch")
    await put(facts, "a")
    purge = {js.OPERATION: "PURGE", "Nats-Rollup": "sub", "Nats-TTL": "60"}
    with pytest.raises(WrongLastSequence):
        await js.put(facts, subject("a"), b"", headers=purge | fence(revision + 7), timeout=10.0)
    found = await js.last(facts, "facts", subject("a"))
    assert found is not None
    assert found.data == b"x"
    await js.put(facts, subject("a"), b"", headers=purge | fence(revision), timeout=10.0)


async def test_a_wiped_bucket_starts_its_revisions_anew_so_they_cannot_order_leaders(facts: Bus) -> None:
    before = [await put(facts, "epoch") for _ in range(3)]
    await js.api(facts, "STREAM.DELETE.KV_facts", {})
    await js.ensure_bucket(facts, FACTS)
    assert await put(facts, "epoch") < before[-1]


# Deletes


async def test_a_purge_replaces_the_key_keeps_its_headers_and_expires(facts: Bus, connect: Connect) -> None:
    listener = await connect()
    stored: list[Msg] = []
    await listener.subscribe("stored.>", stored.append)
    await listener.request("$JS.API.INFO")
    await put(facts, "a")
    await put(
        facts, "a", b"", {js.OPERATION: "PURGE", "Nats-Rollup": "sub", "Nats-TTL": "3", "Pointsman-Sequence": "9"}
    )
    (marker,) = await js.snapshot(facts, "facts", subject(">"))
    assert (marker.data, marker.headers[js.OPERATION], marker.headers["Pointsman-Sequence"]) == (b"", "PURGE", "9")
    await until_keys_are(facts, [])
    await until(lambda: len(stored) == 2)
    assert stored[-1].headers is not None
    assert stored[-1].headers["Pointsman-Sequence"] == "9"


async def test_a_plain_delete_of_a_client_carries_no_order_and_its_marker_stays(facts: Bus, server: NatsServer) -> None:
    await put(facts, "a")
    client = await nats.connect(server.url)
    bucket = await client.jetstream().key_value("facts")
    await bucket.delete("a")
    await client.close()
    await asyncio.sleep(1.5)
    (marker,) = await js.snapshot(facts, "facts", subject(">"))
    assert marker.headers[js.OPERATION] == "DEL"
    assert "Pointsman-Epoch" not in marker.headers
    assert "Nats-TTL" not in marker.headers


# Expiry


async def test_a_keys_own_time_to_live_is_lost_at_its_first_update(facts: Bus) -> None:
    await put(facts, "renewed", b"1", {"Nats-TTL": "1"})
    await put(facts, "left", b"1", {"Nats-TTL": "1"})
    await put(facts, "renewed", b"2")
    await until_keys_are(facts, ["renewed"])
    await asyncio.sleep(0.5)
    assert await keys(facts) == ["renewed"]


async def test_a_buckets_time_to_live_expires_a_key_counted_from_its_last_update(bus: Bus) -> None:
    await js.ensure_bucket(bus, EPHEMERAL)
    loop = asyncio.get_running_loop()
    started = loop.time()
    while loop.time() < started + 1.6:
        renewed = loop.time()
        await js.put(bus, "$KV.ephemeral.renewed", b"x", timeout=10.0)
        assert await keys(bus, EPHEMERAL) == ["renewed"]
        await asyncio.sleep(0.2)
    await until_keys_are(bus, [], EPHEMERAL)
    assert loop.time() - renewed > 0.5


async def test_expiry_is_never_announced(bus: Bus, connect: Connect) -> None:
    await js.ensure_bucket(bus, EPHEMERAL)
    listener = await connect()
    heard: list[Msg] = []
    await listener.subscribe("$KV.ephemeral.>", heard.append)
    await listener.request("$JS.API.INFO")
    await js.put(bus, "$KV.ephemeral.a", b"x", timeout=10.0)
    await until(lambda: len(heard) == 1)
    await until_keys_are(bus, [], EPHEMERAL)
    await asyncio.sleep(0.3)
    assert len(heard) == 1


# Missing buckets


async def test_a_put_to_a_missing_bucket_fails_at_once_when_nobody_subscribes_and_hangs_when_anyone_does(
    bus: Bus, connect: Connect
) -> None:
    with pytest.raises(NoResponders):
        await js.put(bus, "$KV.missing.a", b"x", timeout=5.0)
    listener = await connect()
    await listener.subscribe("$KV.missing.>", lambda message: None)
    await listener.request("$JS.API.INFO")
    with pytest.raises(RequestTimeout):
        await js.put(bus, "$KV.missing.a", b"x", timeout=0.5)


async def test_reading_a_missing_bucket_fails_at_once(bus: Bus) -> None:
    with pytest.raises(NoResponders):
        await js.snapshot(bus, "missing", "$KV.missing.>", timeout=5.0)
    with pytest.raises(JetStreamError) as error:
        await js.last(bus, "missing", "$KV.missing.a", timeout=5.0)
    assert error.value.error_code == js.STREAM_NOT_FOUND


# Snapshots


@pytest.mark.parametrize("page", [1, 7, 25, 100])
async def test_a_snapshot_pages_through_the_last_message_of_each_key(facts: Bus, page: int) -> None:
    wanted = [f"p.{number}" for number in range(25)]
    for round_ in range(2):
        for key in [*wanted, "q.other"]:
            await put(facts, key, str(round_).encode())
    found = await js.snapshot(facts, "facts", subject("p.>"), page=page)
    assert [stored.subject for stored in found] == [subject(key) for key in wanted]
    assert {stored.data for stored in found} == {b"1"}


async def test_a_snapshot_of_a_bucket_with_nothing_to_show_is_empty(facts: Bus) -> None:
    assert await js.snapshot(facts, "facts", subject(">")) == []
    await put(facts, "a")
    assert await js.snapshot(facts, "facts", subject("other.>")) == []


async def test_a_multi_last_request_ends_at_1024_keys_where_pages_go_on(facts: Bus) -> None:
    await asyncio.gather(*(put(facts, f"k.{number}") for number in range(1025)))
    body = json.dumps({"multi_last": [subject(">")]}).encode()
    answers = await facts.request_many("$JS.API.DIRECT.GET.KV_facts", body, last=ends, timeout=5.0)
    assert answers[-1].headers is not None
    assert answers[-1].headers["Status"] == "413"
    assert len(await keys(facts)) == 1025


def ends(message: Msg) -> bool:
    return message.headers is not None and "Status" in message.headers


# Buckets


async def config_of(bus: Bus, bucket: str) -> dict[str, Any]:
    return (await js.api(bus, f"STREAM.INFO.KV_{bucket}", {})).config


async def test_a_bucket_is_created_once_and_then_left_alone(bus: Bus) -> None:
    assert (await js.ensure_bucket(bus, FACTS)).changed
    before = await config_of(bus, "facts")
    assert not (await js.ensure_bucket(bus, FACTS)).changed
    assert await config_of(bus, "facts") == before
    assert before["storage"] == "file"
    assert before["max_msgs_per_subject"] == 1
    assert before["allow_direct"]


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
    assert (await js.ensure_bucket(bus, FACTS)).changed
    config = await config_of(bus, "facts")
    assert config["republish"]["dest"] == "stored.>"
    assert config["allow_direct"]
    assert config["allow_msg_ttl"]
    assert config["max_msgs_per_subject"] == 1
    assert config["max_bytes"] == 1_000_000
    assert not (await js.ensure_bucket(bus, FACTS)).changed


async def test_a_bucket_with_another_storage_is_refused_by_the_server(bus: Bus) -> None:
    await js.ensure_bucket(bus, js.Bucket(name="facts", storage="memory"))
    with pytest.raises(JetStreamError, match="storage"):
        await js.ensure_bucket(bus, FACTS)


async def test_memory_storage_is_lost_with_the_server_and_file_storage_is_not(facts: Bus, server: NatsServer) -> None:
    await js.ensure_bucket(facts, js.Bucket(name="memory", storage="memory"))
    await put(facts, "a")
    server.kill()
    await server.start()
    await until(lambda: not facts.connected or facts.connections > 1)
    await facts.wait_connected(5.0)
    assert await keys(facts) == ["a"]
    with pytest.raises(JetStreamError, match="stream not found"):
        await config_of(facts, "memory")


async def test_one_message_can_be_deleted_by_its_revision_and_leaves_no_marker(bus: Bus) -> None:
    await js.ensure_bucket(bus, EPHEMERAL)
    revision = await js.put(bus, "$KV.ephemeral.a", b"x", timeout=10.0)
    assert await js.remove(bus, "ephemeral", revision)
    assert not await js.remove(bus, "ephemeral", revision)
    assert await keys(bus, EPHEMERAL) == []
    await js.put(bus, "$KV.ephemeral.a", b"x", headers={js.EXPECTED_SEQUENCE: "0"}, timeout=10.0)
