"""Frames from collectors to pickers over a real server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from shared.bus import jetstream as js
from shared.bus.columns import pack_ages, pack_floats, unpack_ages, unpack_floats
from shared.bus.connection import Bus
from shared.bus.errors import BusError, JetStreamError
from shared.bus.frame_bucket import MAX_BYTES, FrameBucket
from shared.bus.frame_columns import FrameContent
from shared.bus.frame_publisher import FramePublisher
from shared.bus.frame_reader import FrameReader
from shared.bus.messages import Frame
from tests.nats import NatsServer
from tests.protocol.bus.conftest import POOL, SUBJECTS, Connect
from tests.waiting import eventually

WIRE = "WaitingQueueSize/core-metrics-extractor"
ADAPTERS = "ActiveModels/core-metrics-extractor"
LONG = 600.0
"""A time to live, in seconds, that doesn't end during a test."""


class Received:
    """Frames with the age that the reader adds."""

    def __init__(self) -> None:
        self.frames: list[tuple[Frame, float]] = []

    def __call__(self, frame: Frame, extra_age: float) -> None:
        self.frames.append((frame, extra_age))

    @property
    def values(self) -> list[float]:
        return [float(unpack_floats(frame.columns[WIRE])[0]) for frame, _ in self.frames]


@asynccontextmanager
async def publishing(bus: Bus, *, check_interval: float = 1.0, **options: float) -> AsyncIterator[FramePublisher]:
    """A collector, and the watcher that makes sure of the bucket."""
    bucket = FrameBucket(bus, SUBJECTS, **options)
    publisher = FramePublisher(bus, SUBJECTS, POOL, "c1", check_interval=check_interval)
    await bucket.start()
    try:
        yield publisher
    finally:
        await publisher.close()
        await bucket.close()


@asynccontextmanager
async def reading_frames(bus: Bus, **options: float) -> AsyncIterator[tuple[FrameReader, Received]]:
    received = Received()
    reader = FrameReader(bus, SUBJECTS, POOL, received, **options)  # type: ignore[arg-type]
    await reader.start()
    await bus.request("$JS.API.INFO")  # a round trip: the subscription is known to the server
    try:
        yield reader, received
    finally:
        await reader.close()


async def send(publisher: FramePublisher, value: float, part: int = 0) -> bool:
    columns, ages = {WIRE: pack_floats([value])}, {WIRE: pack_ages([0.01])}
    return await publisher.publish(part, FrameContent(ids=("default/a",), columns=columns, ages=ages))


async def bucket_is_there(bus: Bus) -> None:
    async def there() -> bool:
        try:
            await js.api(bus, "STREAM.INFO.KV_attributes", {})
        except JetStreamError:
            return False
        return True

    await eventually(there, "the bucket")


async def is_stored(bus: Bus) -> None:
    """Wait until part 0 is in the bucket under its key: frames are stored a little after they were sent."""

    async def so() -> bool:
        found: list[js.Stored] = await js.snapshot(bus, "attributes", "$KV.attributes.>")
        return [message.subject for message in found] == [f"$KV.attributes.{POOL}.c1.0"]

    await eventually(so, "the frame is stored")


async def test_a_frame_arrives_as_it_was_sent_beside_what_is_none(connect: Connect) -> None:
    bus = await connect()
    async with publishing(bus) as publisher, reading_frames(await connect()) as (reader, received):
        await bus.publish(SUBJECTS.frame(POOL, "bad", 0), b"garbage")
        content = FrameContent(
            ids=("default/a", "default/b"),
            columns={WIRE: pack_floats([3.0, np.nan])},
            ages={WIRE: pack_ages([0.25, 0.5]), ADAPTERS: pack_ages([0.0, 0.0])},
            objects={ADAPTERS: [["sql"], None]},
        )
        assert await publisher.publish(2, content)
        await eventually(lambda: received.frames)
        frame, extra_age = received.frames[0]
        assert (frame.sender, frame.sequence, frame.ids) == ("c1", 1, ("default/a", "default/b"))
        np.testing.assert_array_equal(unpack_floats(frame.columns[WIRE]), [3.0, np.nan])
        np.testing.assert_array_equal(unpack_ages(frame.ages[WIRE]), [0.25, 0.5])
        assert frame.objects == {ADAPTERS: [["sql"], None]}
        assert extra_age == 0.0
        assert reader.malformed.total >= 1, "the garbage, live or in the snapshot, or both"


@pytest.mark.parametrize("check_interval", [0.0, LONG], ids=["acknowledged", "not acknowledged"])
async def test_a_frame_that_is_too_large_is_refused(connect: Connect, check_interval: float) -> None:
    async with publishing(await connect(), check_interval=check_interval) as publisher:
        with pytest.raises(BusError, match="maximum payload"):
            await publisher.publish(0, FrameContent(ids=("default/a",), columns={WIRE: bytes(2**20)}))


async def test_the_bucket_is_as_designed(connect: Connect) -> None:
    bus = await connect()
    async with publishing(bus):
        await bucket_is_there(bus)
        config = (await js.api(bus, "STREAM.INFO.KV_attributes", {})).config
        wanted = {"storage": "memory", "max_msgs_per_subject": 1, "max_age": 5_000_000_000, "num_replicas": 1}
        assert {name: config[name] for name in wanted} == wanted


@pytest.mark.parametrize(("limit", "wanted"), [(-1, MAX_BYTES), (1_000_000, 1_000_000), (50_000_000, 50_000_000)])
async def test_an_existing_bucket_gets_a_limit_unless_it_has_one(connect: Connect, limit: int, wanted: int) -> None:
    bus = await connect()
    config = js.Bucket(name="attributes", storage="memory", ttl=5.0).config()
    await js.api(bus, "STREAM.CREATE.KV_attributes", {**config, "max_bytes": limit})
    async with publishing(bus):

        async def limited() -> bool:
            found = (await js.api(bus, "STREAM.INFO.KV_attributes", {})).config
            return bool(found["max_bytes"] == wanted)

        await eventually(limited, "the limit")


async def test_a_frame_of_a_snapshot_counts_as_one_time_to_live_old_until_a_live_one_comes(connect: Connect) -> None:
    bus = await connect()
    async with publishing(bus, ttl=LONG) as publisher:
        await bucket_is_there(bus)
        await send(publisher, 1.0)
        await is_stored(bus)
        async with reading_frames(await connect(), ttl=LONG) as (reader, received):
            await eventually(lambda: received.frames)
            assert (received.values, received.frames[0][1]) == ([1.0], LONG)
            assert reader.age() == float("inf")
            await send(publisher, 2.0)
            await eventually(lambda: len(received.frames) == 2)
            assert received.values[1] == 2.0
            assert received.frames[1][1] < LONG
            assert (reader.snapshot_frames, reader.frames) == (1, 1)


async def keep_sending(publisher: FramePublisher) -> None:
    value = 0.0
    while True:
        value += 1.0
        await send(publisher, value)
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("wipe", [False, True], ids=["store kept", "wiped"])
async def test_memory_lost_with_the_server_frames_flow_again_and_the_bucket_is_back(
    server: NatsServer, connect: Connect, wipe: bool
) -> None:
    bus = await connect()
    async with publishing(bus) as publisher, reading_frames(await connect()) as (reader, received):
        sending = asyncio.create_task(keep_sending(publisher))
        await eventually(lambda: received.frames)
        server.kill()
        await eventually(lambda: not bus.connected and publisher.dropped > 0)
        if wipe:
            server.wipe()
        received.frames.clear()
        await server.start()
        before = reader.frames
        await eventually(lambda: reader.frames >= before + 3, lambda: (publisher, reader))
        await bucket_is_there(bus)
        sending.cancel()


async def test_a_bucket_that_was_deleted_is_made_again_though_nobody_is_disconnected(connect: Connect) -> None:
    """Readers go on hearing frames from the subject; the missing bucket shows only in the acknowledged one."""
    bus = await connect()
    async with publishing(bus, check_interval=0.1, check=2.0) as publisher, reading_frames(await connect()):
        await bucket_is_there(bus)
        await js.api(bus, "STREAM.DELETE.KV_attributes", {})
        sending = asyncio.create_task(keep_sending(publisher))
        await eventually(lambda: publisher.unacknowledged, lambda: publisher)
        await bucket_is_there(bus)
        sending.cancel()


async def test_frames_that_a_stall_held_back_carry_their_age(server: NatsServer, connect: Connect) -> None:
    async with publishing(await connect()) as publisher, reading_frames(await connect()) as (_, received):
        for value in range(5):  # what later ones are compared with
            await send(publisher, float(value))
            await asyncio.sleep(0.02)
        await eventually(lambda: len(received.frames) == 5)
        received.frames.clear()
        server.pause()
        await send(publisher, 5.0)
        await asyncio.sleep(0.5)
        server.resume()
        await eventually(lambda: received.frames)
        assert received.frames[0][1] > 0.3


async def test_a_stored_frame_that_somebody_has_sent_to_all_readers_isnt_taken_for_a_new_one(connect: Connect) -> None:
    """NATS doesn't check where a request wants its answer. The frame may have been overtaken by another part."""
    bus, subject = await connect(), SUBJECTS.frame(POOL, "c1", 0)
    async with publishing(bus, ttl=LONG) as publisher, reading_frames(await connect()) as (reader, received):
        await bucket_is_there(bus)
        assert await send(publisher, 1.0)
        await eventually(lambda: received.values == [1.0], lambda: reader)
        get = f"$JS.API.DIRECT.GET.KV_{SUBJECTS.attributes_bucket}"
        assert await bus.publish(get, json.dumps({"last_by_subj": subject}).encode(), reply=subject)
        await eventually(lambda: reader.malformed.total == 1, lambda: reader)
        assert await send(publisher, 2.0)
        await eventually(lambda: received.values == [1.0, 2.0], lambda: reader)
