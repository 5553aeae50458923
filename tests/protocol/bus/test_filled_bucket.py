"""A bucket that somebody fills with foreign keys: the owner's news doesn't wait until they are read and deleted."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shared.bus import jetstream as js
from shared.bus.connection import Bus
from shared.bus.facts import Upsert
from shared.bus.publisher import FactPublisher
from shared.bus.subjects import synced_key
from tests.protocol.bus.conftest import POOL, SUBJECTS, Connect, endpoints, leading
from tests.waiting import eventually

PAGE = 10
JUNK = 100


async def fill(bus: Bus) -> None:
    for number in range(JUNK):
        await js.put(bus, f"$KV.endpoints.junk{number}", b"x", timeout=5.0)


def in_pages(monkeypatch: pytest.MonkeyPatch, after_page: Callable[[int], Awaitable[None]]) -> None:
    """Have small pages, and call this after each page that a publisher reads."""
    pages, whole = 0, js.snapshot

    async def snapshot(bus: Bus, bucket: str, subjects: str, **how: Any) -> Any:
        between = how.pop("between", None)

        async def between_pages() -> None:
            nonlocal pages
            pages += 1
            await after_page(pages)
            await between()

        return await whole(bus, bucket, subjects, between=between_pages if between else None, page=PAGE, **how)

    monkeypatch.setattr(js, "snapshot", snapshot)


@pytest.mark.parametrize("leads", [False, True], ids=["at the start of a term", "while it leads"])
async def test_news_goes_out_while_foreign_keys_are_read(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, leads: bool
) -> None:
    bus = await connect()
    made = FactPublisher(bus, SUBJECTS, "w1", check_interval=0.2)
    made.update(endpoints("a"), [POOL])
    if not leads:
        async with leading(made):
            await eventually(lambda: made.published, lambda: made)
        await fill(bus)
        made = FactPublisher(bus, SUBJECTS, "w2", check_interval=0.2)
        made.update(endpoints("a"), [POOL])
    (key, fact), *_ = endpoints("b").items()
    found: list[bool] = []

    async def after_page(page: int) -> None:
        if await filled():
            if not found:
                made.apply([Upsert(key, fact)])
            found.append(await js.last(bus, "endpoints", SUBJECTS.fact(key)) is not None)

    async def filled() -> bool:
        return await js.last(bus, "endpoints", SUBJECTS.fact("junk0")) is not None

    in_pages(monkeypatch, after_page)
    async with leading(made):
        if leads:
            await eventually(lambda: made.published, lambda: made)
            await fill(bus)
        await eventually(lambda: made.deleted == JUNK, lambda: made)
        await eventually(lambda: made.published, lambda: made)
    assert found[:2] == [False, True]
    assert made.repaired in (0, JUNK), "what it wrote meanwhile wasn't somebody else's"


async def test_what_is_said_to_be_complete_is_said_while_foreign_keys_are_deleted(connect: Connect) -> None:
    bus = await connect()
    publisher = FactPublisher(bus, SUBJECTS, "w1", check_interval=0.1, synced_interval=0.001, window=1)
    publisher.update(endpoints("a"), [POOL])
    heard: list[str] = []
    await bus.subscribe(
        SUBJECTS.republished(">"), lambda message: heard.append(SUBJECTS.republished_key(message.subject))
    )
    async with leading(publisher):
        await eventually(lambda: publisher.published, lambda: publisher)
        await fill(bus)
        await eventually(lambda: publisher.deleted == JUNK and heard.count("junk99") == 2, lambda: publisher)
    first, last = (heard.index(key, heard.index(key) + 1) for key in ("junk0", "junk99"))  # written, then deleted
    assert synced_key(POOL) in heard[first:last]
