"""What the bus takes for granted about nats-server, each statement tried on the real one."""

import asyncio
import json
from typing import Any

import pytest
from nats.aio.msg import Msg

from shared.bus import Bus, JetStreamError, NoResponders, RequestTimeout, WrongLastSequence
from shared.bus import jetstream as js
from tests.protocol.bus.conftest import Connect
from tests.waiting import eventually

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


async def until_keys_are(bus: Bus, wanted: list[str], bucket: js.Bucket = FACTS) -> None:
    async def so() -> bool:
        return await keys(bus, bucket) == wanted

    await eventually(so, f"keys {wanted}", step=0.05)


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
    await eventually(lambda: len(stored) == 3 and len(raw) == 4)
    assert [(message.subject, message.data) for message in stored] == [
        ("stored.epoch", b"x"),
        ("stored.a", b"stored"),
        ("stored.last", b"x"),
    ]
    assert b"refused" in [message.data for message in raw]


# Fencing


# Deletes


async def test_a_purge_replaces_the_key_and_keeps_its_headers(facts: Bus, connect: Connect) -> None:
    listener = await connect()
    stored: list[Msg] = []
    await listener.subscribe("stored.>", stored.append)
    await listener.request("$JS.API.INFO")
    await put(facts, "a")
    await put(
        facts, "a", b"", {js.OPERATION: "PURGE", "Nats-Rollup": "sub", "Nats-TTL": "60", "Pointsman-Sequence": "9"}
    )
    (marker,) = await js.snapshot(facts, "facts", subject(">"))
    assert (marker.data, marker.headers[js.OPERATION], marker.headers["Pointsman-Sequence"]) == (b"", "PURGE", "9")
    await eventually(lambda: len(stored) == 2)
    assert stored[-1].headers is not None
    assert stored[-1].headers["Pointsman-Sequence"] == "9"


# Expiry


async def test_a_keys_own_time_to_live_is_lost_at_its_first_update(facts: Bus) -> None:
    await put(facts, "renewed", b"1", {"Nats-TTL": "1"})
    await put(facts, "renewed", b"2")
    await put(facts, "left", b"1", {"Nats-TTL": "2"})  # the other one's would be over before
    await until_keys_are(facts, ["renewed"])


async def test_expiry_is_never_announced(bus: Bus, connect: Connect) -> None:
    await js.ensure_bucket(bus, EPHEMERAL)
    listener = await connect()
    heard: list[Msg] = []
    await listener.subscribe("$KV.ephemeral.>", heard.append)
    await listener.request("$JS.API.INFO")
    await js.put(bus, "$KV.ephemeral.a", b"x", timeout=10.0)
    await eventually(lambda: len(heard) == 1)
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


# Snapshots


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
