"""What a scrape may take is a setting of the collector."""

import asyncio
from typing import Any

import pytest

from tests.nats import NatsServer
from tests.protocol.collector.harness import OddServer, Owner, answer, collector, endpoint
from tests.waiting import eventually


async def _late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(1.0)


@pytest.mark.parametrize(
    ("setting", "limit", "behaviour", "why"),
    [
        ("page_limit", 99, answer(b"a 1\n" * 25), "larger than 99 bytes"),
        ("header_limit", 99, answer(b"a 1\n", headers="x: " + "y" * 80), "more than 99 bytes"),
        ("scrape_timeout", 0.1, _late, "no complete response within 100ms"),
    ],
)
async def test_a_scrape_beyond_a_setting_fails(
    nats: NatsServer, owner: Owner, setting: str, limit: float, behaviour: Any, why: str
) -> None:
    async with OddServer(behaviour) as server, collector(nats.url, **{setting: limit}) as service:
        await owner.publish([endpoint("a", server.port)])
        await eventually(
            lambda: why in str(list(service.scraper.describe())), lambda: str(list(service.scraper.describe()))
        )
