"""`burst-prefix-cache-producer`: equal prompts of one burst go to one endpoint."""

import asyncio
import gc
from collections import Counter
from typing import Any

import numpy as np
import pytest

from services.picker.request import Request
from services.picker.scheduling.cycle import PREFIX_MATCH
from services.picker.scheduling.producers.burst_prefix import BurstPrefixProducer
from services.picker.state.view import View
from tests.unit.services.picker.scheduling.plugins import plugin, read
from tests.unit.services.picker.world import cycle, pool, request

BLOCK = 64 * 4
"""Bytes."""


def prompt(text: str) -> Request:
    """A prompt of a block for each letter."""
    return request(b"".join(letter.encode() * BLOCK for letter in text))


async def placed(raw: dict[str, Any], view: View, *prompts: str) -> list[int | None]:
    """Where requests with these prompts, which come at once, have their match; None where they have none."""
    producer = plugin(BurstPrefixProducer, {"windowDurationMs": 1, **raw})
    asked = [prompt(text) for text in prompts]
    awaited = [producer.prepare(each) for each in asked]
    results = await asyncio.gather(*(each for each in awaited if each is not None))
    found: list[int | None] = []
    for each, wait in zip(asked, awaited, strict=True):
        run = cycle(view, each)
        if wait is not None:
            run.prepared = {producer: results.pop(0)}
        producer.produce(run)
        run.check(PREFIX_MATCH)
        match = run.get(PREFIX_MATCH)
        assert match is not None
        rows = match.matched.nonzero()[0].tolist()
        assert len(rows) <= 1
        assert all(match.matched[row] == match.total for row in rows)
        found.append(rows[0] if rows else None)
    return found


@pytest.mark.parametrize(
    ("raw", "prompts", "expected"),
    [
        ({}, [], []),
        ({}, ["ab"], [None]),  # alone
        ({}, [""], [None]),
        ({}, ["ab", "ab", "ab"], [0, 0, 0]),
        ({}, ["ab", "cd", "ab", "cd"], [0, 1, 0, 1]),
        ({}, ["ab", "ac"], [None, None]),  # only equal prompts belong together
        ({}, ["ab", "cd", "ab"], [0, None, 0]),
        # longer prompts first
        ({}, ["ab", "ab", "cde", "cde"], [1, 1, 0, 0]),
        ({"maxPerReplica": 2}, ["ab"] * 6, [0, 0, 1, 1, 2, 2]),
        ({"maxPerReplica": 2}, ["ab"] * 8, [0, 0, 1, 1, 2, 2, 0, 0]),
        # a shared beginning: single prompts join it
        ({"minColocateBlocks": 2}, ["abc", "abd", *"wxyz"], [0, 0, None, None, None, None]),
        ({"minColocateBlocks": 3}, ["abc", "abd"], [None, None]),
        # … up to a fair share: 6 requests on 3 endpoints
        ({"minColocateBlocks": 1}, ["ab", "ac", "ad", "ae", "af", "ag"], [0, 0, 1, 2, 1, 2]),
        ({"maxPrefixTokensToMatch": 128}, ["abc", "abd"], [0, 0]),  # only two blocks are looked at
        ({"balanceBy": "tokens"}, ["abcdefgh", "abcdefgh", "x", "x", "y", "y"], [0, 0, 1, 1, 2, 2]),
    ],
)
async def test_where_a_burst_goes(raw: dict[str, Any], prompts: list[str], expected: list[int | None]) -> None:
    assert await placed(raw, pool("a1", "a2", "a3"), *prompts) == expected


async def test_groups_are_spread_evenly() -> None:
    found = await placed({}, pool("a1", "a2", "a3"), *(letter for letter in "abcdef" for _ in range(4)))
    assert Counter(found) == {0: 8, 1: 8, 2: 8}


async def test_a_burst_is_placed_without_a_look_at_every_endpoint() -> None:
    """An array of so many loads fits into no memory."""
    producer = plugin(BurstPrefixProducer, {"windowDurationMs": 1, "maxPerReplica": 1})
    asked = [prompt(text) for text in ("ab", "ab", "cd", "cd", "ab")]
    members = await asyncio.gather(*(wait for each in asked if (wait := producer.prepare(each)) is not None))
    run = cycle(pool("a1"), asked[0])
    run.prepared = {producer: members[0]}
    run.candidates = np.broadcast_to(run.candidates, 2**59)
    producer.produce(run)
    assert [member.endpoint for member in members] == ["a1"] * 5


async def test_a_full_batch_doesnt_wait_for_its_window() -> None:
    producer = plugin(BurstPrefixProducer, {"windowDurationMs": 10_000, "maxBatchSize": 2})
    waits = [producer.prepare(prompt("ab")) for _ in range(2)]
    await asyncio.gather(*(wait for wait in waits if wait is not None))
    assert producer.state()["bursts"] == 1


async def test_a_request_that_is_gone_counts_no_more() -> None:
    producer = plugin(BurstPrefixProducer, {"windowDurationMs": 10_000, "maxBatchSize": 2})
    for _ in range(5):
        wait = producer.prepare(prompt("ab"))
        assert wait is not None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait, 0.001)
    assert producer.state()["bursts"] == 0


async def test_an_endpoint_that_has_gone_meanwhile_has_no_match() -> None:
    producer = plugin(BurstPrefixProducer, {"windowDurationMs": 1})
    wait = [producer.prepare(prompt("ab")) for _ in range(2)]
    first, second = await asyncio.gather(*wait)
    for view, member, blocks in ((pool("a1", "a2"), first, 2), (pool("a2"), second, 0)):
        run = cycle(view, prompt("ab"))
        run.prepared = {producer: member}
        producer.produce(run)
        match = run.get(PREFIX_MATCH)
        assert match is not None
        assert match.matched[0] == blocks


def test_the_budget_covers_the_window() -> None:
    assert plugin(BurstPrefixProducer, {"windowDurationMs": 5000}).BUDGET > 5
    assert read(BurstPrefixProducer.Parameters, {"windowDurationMs": 10_001})[1] == [
        "at.windowDurationMs: 10001 is above 10000"
    ]


async def test_a_request_that_waits_on_keeps_neither_its_window_nor_its_hashes() -> None:
    """Under flow control it may wait for a minute after its window, while the others have gone."""
    producer = plugin(BurstPrefixProducer, {"windowDurationMs": 1})
    asked = [prompt("ab"), prompt("ab")]
    first, waiting = await asyncio.gather(*(wait for each in asked if (wait := producer.prepare(each)) is not None))
    run = cycle(pool("a1"), asked[0])
    run.prepared = {producer: first}
    producer.produce(run)
    assert not [held for held in gc.get_referents(waiting, waiting.batch) if isinstance(held, list) and held]


async def test_small_blocks_count_as_those_of_64_tokens() -> None:
    producer = plugin(BurstPrefixProducer, {"windowDurationMs": 1, "blockSizeTokens": 1})
    waits = producer.prepare(prompt("abc"))
    assert waits is not None
    assert (await waits).blocks == 3
