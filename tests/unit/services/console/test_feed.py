"""A feed tells each listener everything, and then what changes."""

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Message

from services.console.api import FeedResponse
from services.console.feed import KEPT, Feed, event
from tests.waiting import eventually


class Counting:
    """A topic whose whole is a number."""

    def __init__(self) -> None:
        self.number = 0
        self.shown = 0
        self.refreshes = 0
        self.wholes = 0
        self.broken = False

    async def refresh(self) -> bytes | None:
        self.refreshes += 1
        if self.broken:
            raise ValueError("broken")
        if self.number == self.shown:
            return None
        self.shown = self.number
        return event("changes", str(self.shown).encode())

    async def whole(self) -> bytes:
        self.wholes += 1
        return event("whole", str(self.shown).encode())


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def told(stream: AsyncIterator[bytes]) -> list[str]:
    """The next events: name and data."""
    piece = (await anext(stream)).decode()
    blocks = [block.split("\n") for block in piece.split("\n\n") if block.startswith("event: ")]
    return [f"{name.removeprefix('event: ')} {data.removeprefix('data: ')}" for name, data in blocks]


async def test_a_listener_gets_the_whole_and_then_changes() -> None:
    topic = Counting()
    feed = Feed(topic, 0.001, 60.0)
    topic.number = 7
    running = asyncio.create_task(feed.run())
    stream = feed.listen()
    assert await told(stream) == ["whole 7"]
    topic.number = 8
    assert await told(stream) == ["changes 8"]
    running.cancel()


async def test_a_slow_listener_gets_the_whole_again() -> None:
    topic, clock = Counting(), Clock()
    feed = Feed(topic, 1.0, 1e9, clock)
    slow = feed.listen()
    assert await told(slow) == ["whole 0"]
    for _ in range(KEPT + 1):
        topic.number += 1
        clock.now += 1.0
        another = feed.listen()
        await told(another)
    assert await told(slow) == [f"whole {topic.number}"]


async def test_a_listener_that_is_a_little_late_gets_every_change() -> None:
    topic, clock = Counting(), Clock()
    feed = Feed(topic, 1.0, 1e9, clock)
    late = feed.listen()
    await told(late)
    for _ in range(3):
        topic.number += 1
        clock.now += 1.0
        await told(feed.listen())
    assert [await told(late) for _ in range(3)] == [["changes 1"], ["changes 2"], ["changes 3"]]


async def test_a_listener_that_does_not_read_holds_one_event() -> None:
    topic, clock = Counting(), Clock()
    feed = Feed(topic, 1.0, 1e9, clock)
    late = feed.listen()
    await told(late)
    for _ in range(KEPT):
        topic.number += 1
        clock.now += 1.0
        await told(feed.listen())
    assert await told(late) == ["changes 1"]
    for _ in range(KEPT):
        topic.number += 1
        clock.now += 1.0
        await told(feed.listen())
    assert await told(late) == [f"whole {topic.number}"]


async def test_nothing_is_refreshed_while_nobody_listens() -> None:
    topic = Counting()
    feed = Feed(topic, 0.0, 60.0)
    running = asyncio.create_task(feed.run())
    await asyncio.sleep(0.01)
    assert topic.refreshes == 0
    stream = feed.listen()
    await told(stream)
    assert feed.listeners == 1
    await stream.aclose()
    assert feed.listeners == 0
    running.cancel()


async def test_a_client_that_goes_in_the_middle_of_an_event_listens_no_longer() -> None:
    feed = Feed(Counting(), 0.0, 60.0)
    response, sending = FeedResponse(feed), asyncio.Event()

    async def receive() -> Message:
        await sending.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            sending.set()
            await asyncio.Event().wait()

    await response({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
    assert feed.listeners == 0


async def test_a_stream_ends_with_its_lifetime_and_when_the_feed_closes() -> None:
    clock = Clock()
    feed = Feed(Counting(), 1.0, 5.0, clock)
    first, second = feed.listen(), feed.listen()
    await told(first)
    clock.now = 4.0
    await told(second)
    clock.now = 5.0
    assert [piece async for piece in first] == []
    feed.close()
    assert [piece async for piece in second] == []


async def test_a_listener_that_waits_gets_nothing_when_the_feed_closes() -> None:
    feed = Feed(Counting(), 1.0, 1e9, Clock())
    stream = feed.listen()
    await told(stream)
    waiting = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0)
    feed.close()
    assert await waiting is None


async def test_listeners_of_one_refresh_share_the_whole() -> None:
    topic, clock = Counting(), Clock()
    feed = Feed(topic, 1.0, 1e9, clock)
    for _ in range(3):
        assert await told(feed.listen()) == ["whole 0"]
    assert topic.wholes == 1
    topic.number, clock.now = 1, 1.0
    assert await told(feed.listen()) == ["whole 1"]


async def test_a_feed_goes_on_after_a_refresh_that_fails() -> None:
    topic = Counting()
    feed = Feed(topic, 0.0, 60.0)
    stream = feed.listen()
    await told(stream)
    topic.broken = True
    running = asyncio.create_task(feed.run())
    await eventually(lambda: feed.failed > 1)
    topic.broken, topic.number = False, 1
    assert await told(stream) == ["changes 1"]
    running.cancel()
