"""Buckets that somebody else has made, on a real nats-server."""

import pytest

from shared.bus import Bus, JetStreamError
from shared.bus import jetstream as js

FACTS = js.Bucket(name="facts", storage="file", republish="stored.>", message_ttl=True)


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
    config = (await js.api(bus, "STREAM.INFO.KV_facts", {})).config
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
