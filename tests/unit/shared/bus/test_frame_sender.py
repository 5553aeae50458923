"""When which frame goes out."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec import msgpack
from structlog.testing import capture_logs

from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, AttributeKey, AttributeMap
from shared.bus.codec import decode, encode
from shared.bus.errors import BusError
from shared.bus.frame_columns import FrameContent
from shared.bus.frame_sender import CHANGES_PART, FrameSender, Outbox
from shared.bus.messages import Frame
from tests.waiting import eventually


def test_the_first_change_makes_news_and_later_ones_join_it() -> None:
    outbox = Outbox(0.1, 0.5)
    assert outbox.note("a", True)
    assert not outbox.note("b", True)
    assert not outbox.note("a", True)
    assert outbox.take_changes() == ["a", "b"]
    assert outbox.note("a", True)


def test_everything_is_due_at_once_and_at_the_heartbeat_and_earlier_after_a_scrape_without_a_change() -> None:
    outbox = Outbox(0.1, 0.5)
    assert outbox.everything_at() == float("-inf")
    outbox.everything_sent(10.0)
    assert outbox.everything_at() == 10.5
    assert outbox.note("a", False)
    assert not outbox.note("b", False)
    assert outbox.changes == 0
    assert outbox.everything_at() == pytest.approx(10.1)
    outbox.note("a", True)
    outbox.everything_sent(10.1)
    assert outbox.take_changes() == []
    assert outbox.everything_at() == pytest.approx(10.6)
    slow = Outbox(5.0, 0.5)
    slow.everything_sent(1.0)
    slow.note("a", True)
    assert slow.everything_at() == 1.5, "never later than the heartbeat"


class Recorder:
    """Takes frames; refuses those with more endpoints than `limit`."""

    def __init__(self, limit: int = 1000, connected: bool = True) -> None:
        self.frames: list[tuple[int, tuple[str, ...]]] = []
        self.limit = limit
        self.connected = connected
        self.names: set[str] = set()
        """The attributes of the last frame."""

    async def publish(self, part: int, content: FrameContent) -> bool:
        assert content.columns.keys() | content.objects.keys() == content.ages.keys()
        if len(content.ids) > self.limit:
            raise BusError("maximum payload exceeded")
        self.frames.append((part, content.ids))
        self.names = set(content.columns)
        return self.connected


class Encoding(Recorder):
    """Encodes what it is given, as the publisher does."""

    objects: Mapping[str, list[Any]]
    absent: Mapping[str, list[int]]

    async def publish(self, part: int, content: FrameContent) -> bool:
        msgpack.encode(content)
        self.objects, self.absent = content.objects, content.absent
        return await super().publish(part, content)


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Known:
    attributes: AttributeMap = field(default_factory=AttributeMap)


def endpoints(count: int, *, known: bool = True) -> dict[str, Known]:
    made = {}
    for number in range(count):
        id = f"e{number:04}"
        made[id] = Known()
        if known:
            made[id].attributes.put(WAITING_QUEUE_SIZE, 1.0, 99.0)
    return made


def change(sending: FrameSender, watched: dict[str, Known], id: str) -> None:
    """A value of the endpoint is another one."""
    before = watched[id].attributes.get(WAITING_QUEUE_SIZE) or 0.0
    watched[id].attributes.put(WAITING_QUEUE_SIZE, before + 1.0, 99.5)
    sending.note(id, True)


def sender(recorder: Recorder, watched: dict[str, Known], clock: Clock) -> FrameSender:
    return FrameSender(recorder, lambda: watched, linger=0.0, refresh=0.1, heartbeat=0.5, clock=clock)


async def test_changes_and_everything_have_keys_of_their_own() -> None:
    recorder, clock, watched = Recorder(), Clock(), endpoints(3)
    sending = sender(recorder, watched, clock)
    await sending.send()
    change(sending, watched, "e0001")
    sending.note("e0000", False)
    await sending.send()
    assert recorder.frames == [(0, ("e0000", "e0001", "e0002")), (CHANGES_PART, ("e0001",))]
    assert sending.bytes == 4 * 12


async def test_a_change_brings_the_attributes_that_have_changed_and_no_others() -> None:
    recorder, clock, watched = Recorder(), Clock(), endpoints(3)
    for watched_pod in watched.values():
        watched_pod.attributes.put(KV_CACHE_USAGE, 0.5, 99.0)
    sending = sender(recorder, watched, clock)
    await sending.send()
    assert recorder.names == {WAITING_QUEUE_SIZE.wire, KV_CACHE_USAGE.wire}
    change(sending, watched, "e0002")
    await sending.send()
    assert recorder.frames[-1] == (CHANGES_PART, ("e0002",))
    assert recorder.names == {WAITING_QUEUE_SIZE.wire}


async def test_a_change_that_everything_has_told_already_isnt_told_again() -> None:
    recorder, clock, watched = Recorder(), Clock(), endpoints(1)
    sending = sender(recorder, watched, clock)
    await sending.send()
    change(sending, watched, "e0000")
    clock.now += 1
    await sending.send()
    sending.note("e0000", True)
    await sending.send()
    assert [part for part, _ in recorder.frames] == [0, 0]


async def test_a_frame_that_is_too_large_for_a_message_is_halved() -> None:
    recorder, clock, watched = Recorder(limit=2), Clock(), endpoints(5)
    sending = sender(recorder, watched, clock)
    await sending.send()
    assert [part for part, _ in recorder.frames] == [0, 1, 2]
    assert [id for _, ids in recorder.frames for id in ids] == list(watched)
    recorder.frames.clear()
    for id in watched:
        change(sending, watched, id)
    await sending.send()
    assert {part for part, _ in recorder.frames} == {CHANGES_PART}
    assert [id for _, ids in recorder.frames for id in ids] == list(watched)


async def test_an_endpoint_that_fits_into_no_message_leaves_the_others() -> None:
    recorder, watched = Recorder(limit=0), endpoints(2)
    sending = sender(recorder, watched, Clock())
    await sending.send()
    assert sending.oversized == 2
    assert recorder.frames == []


@pytest.mark.parametrize("news", [False, True])
async def test_a_value_that_no_message_can_carry_any_more_is_denied_and_the_others_are_sent(news: bool) -> None:
    names = AttributeKey("Names", "mine", list)
    recorder, clock, watched = Encoding(), Clock(), endpoints(2)
    sending = sender(recorder, watched, clock)
    if news:
        await sending.send()
    for watched_pod in watched.values():
        watched_pod.attributes.put(names, ["a"], 99.0)
    broken = watched["e0001"].attributes.get(names)
    assert broken is not None
    broken.append(object())
    change(sending, watched, "e0000")
    change(sending, watched, "e0001")
    with capture_logs() as logged:
        await sending.send()
        clock.now += 1
        await sending.send()
    assert len(recorder.frames) == 2 + news
    assert recorder.names == {WAITING_QUEUE_SIZE.wire}
    assert recorder.objects == {"Names/mine": [["a"], None]}
    assert recorder.absent == {"Names/mine": [1]}
    (line,) = logged
    assert (line["event"], line["endpoint"], line["attribute"]) == ("attribute.unsendable", "e0001", "Names/mine")


async def test_a_frame_that_cant_be_encoded_for_another_reason_is_a_defect_that_shows() -> None:
    class Defect(Recorder):
        async def publish(self, *_: Any) -> bool:
            raise TypeError("a defect")

    with pytest.raises(TypeError, match="a defect"):
        await sender(Defect(), endpoints(1), Clock()).send()


async def test_endpoints_of_which_nothing_is_known_are_in_no_frame() -> None:
    recorder = Recorder()
    await sender(recorder, endpoints(3, known=False), Clock()).send()
    assert recorder.frames == []


async def test_frames_without_a_connection_are_counted() -> None:
    recorder = Recorder(connected=False)
    sending = sender(recorder, endpoints(1), Clock())
    await sending.send()
    assert (sending.frames, sending.dropped) == (0, 1)


async def test_a_change_of_an_endpoint_that_has_gone_meanwhile_is_left_out() -> None:
    recorder, clock, watched = Recorder(), Clock(), endpoints(2)
    sending = sender(recorder, watched, clock)
    await sending.send()
    change(sending, watched, "e0000")
    del watched["e0000"]
    await sending.send()
    assert len(recorder.frames) == 1


@pytest.mark.parametrize(("changed", "part"), [(True, CHANGES_PART), (False, 0)])
async def test_while_it_runs_changes_go_out_at_once_and_scrapes_without_one_at_the_refresh(
    changed: bool, part: int
) -> None:
    recorder, watched = Recorder(), endpoints(1)
    refresh = 3600.0 if changed else 0.01
    sending = FrameSender(recorder, lambda: watched, linger=0.0, refresh=refresh, heartbeat=3600.0)
    running = asyncio.create_task(sending.run())
    await eventually(lambda: len(recorder.frames) == 1)
    if changed:
        change(sending, watched, "e0000")
    else:
        sending.note("e0000", False)
    await eventually(lambda: len(recorder.frames) == 2)
    running.cancel()
    assert recorder.frames[1] == (part, ("e0000",))


async def test_changes_travel_together_once_no_others_are_about_to_come() -> None:
    recorder, watched = Recorder(), endpoints(3)
    sending = FrameSender(recorder, lambda: watched, linger=3600.0, refresh=3600.0, heartbeat=3600.0)
    running = asyncio.create_task(sending.run())
    await eventually(lambda: len(recorder.frames) == 1)
    sending.gathered()  # nothing waits: it isn't about the changes that follow
    for id in ("e0000", "e0001"):
        change(sending, watched, id)
        await asyncio.sleep(0.01)
    assert len(recorder.frames) == 1
    sending.gathered()
    await eventually(lambda: len(recorder.frames) == 2)
    change(sending, watched, "e0002")
    await asyncio.sleep(0.01)
    sending.gathered()
    await eventually(lambda: len(recorder.frames) == 3)
    running.cancel()
    assert recorder.frames[1:] == [(CHANGES_PART, ("e0000", "e0001")), (CHANGES_PART, ("e0002",))]


async def test_more_attributes_than_a_frame_names_go_in_several() -> None:
    keys = [AttributeKey(f"Many{number}", "test", float) for number in range(2500)]
    attributes = AttributeMap()
    for key in keys:
        attributes.put(key, 1.0, 1.0)
    sent: list[tuple[int, int]] = []

    class Counting(Recorder):
        async def publish(self, part: int, content: FrameContent) -> bool:
            sent.append((part, len(content.columns)))
            return True

    sender = FrameSender(
        Counting(), lambda: {"a": Known(attributes)}, linger=0.0, refresh=0.1, heartbeat=0.5, clock=lambda: 1.0
    )
    await sender.send()
    assert [part for part, _ in sent] == list(range(len(sent)))
    assert sum(count for _, count in sent) == len(keys)
    assert max(count for _, count in sent) <= 1024


@pytest.mark.parametrize(
    ("endpoints", "attributes", "names", "length"),
    [(1000, 1, 60, 2), (1, 5, 9000, 2), (3, 3, 9000, 2), (5, 5, 128, 1000)],
)
async def test_more_names_than_a_frame_takes_go_in_several_that_can_be_read(
    endpoints: int, attributes: int, names: int, length: int
) -> None:
    keys: list[AttributeKey[Any]] = [AttributeKey(f"Names{number}", "test", tuple) for number in range(attributes)]
    known: dict[str, Known] = {}
    for number in range(endpoints):
        known[f"e{number}"] = Known(AttributeMap())
        for key in keys:
            known[f"e{number}"].attributes.put(key, tuple(f"m{name:0{length}}" for name in range(names)), 1.0)
    read: list[Frame] = []

    class Reading(Recorder):
        async def publish(self, part: int, content: FrameContent) -> bool:
            fields = {name: getattr(content, name) for name in content.__struct_fields__}
            read.append(decode(Frame, encode(Frame(sender="c", sent=1.0, sequence=part, **fields))))
            return True

    sending = FrameSender(Reading(), lambda: known, linger=0.0, refresh=0.1, heartbeat=0.5, clock=lambda: 1.0)
    await sending.send()
    assert [frame.sequence for frame in read] == list(range(len(read))), "each is a part of its own"
    lists = [values for frame in read for values in frame.objects.values()]
    assert sum(map(len, lists)) == endpoints * attributes


@pytest.mark.parametrize(("kind", "count"), [(float, 150_000), (tuple, 300)])
async def test_more_attributes_that_endpoints_do_not_have_than_a_frame_takes_go_in_several(
    kind: type, count: int
) -> None:
    keys: list[AttributeKey[Any]] = [AttributeKey(f"Absent{number}", "test", kind) for number in range(150)]
    other = AttributeKey("Other", "test", float)
    known = {f"e{number}": Known(AttributeMap()) for number in range(1000)}
    for number, endpoint in enumerate(known.values()):
        for key in keys:
            if kind is float:
                endpoint.attributes.deny(key, 1.0)
            elif number % 500 == 0:
                endpoint.attributes.put(key, ("a",), 1.0)
            else:
                endpoint.attributes.put(other, 1.0, 1.0)
    packed: list[bytes] = []

    class Reading(Recorder):
        async def publish(self, part: int, content: FrameContent) -> bool:
            fields = {name: getattr(content, name) for name in content.__struct_fields__}
            packed.append(encode(Frame(sender="c", sent=1.0, sequence=part, **fields)))
            return True

    sending = FrameSender(Reading(), lambda: known, linger=0.0, refresh=0.1, heartbeat=0.5, clock=lambda: 1.0)
    await sending.send()
    read = [decode(Frame, data) for data in packed]
    assert [frame.sequence for frame in read] == [0, 1], "each is a part of its own"
    absent = sum(len(positions) for frame in read for positions in frame.absent.values())
    named = sum(value is not None for frame in read for values in frame.objects.values() for value in values)
    assert absent + named == count
