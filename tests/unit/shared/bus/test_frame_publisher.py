"""The sender of frames before there is a server. With real servers: tests/protocol/bus."""

from collections.abc import Callable

from shared.bus.connection import Bus
from shared.bus.frame_publisher import FramePublisher
from shared.bus.subjects import Subjects


async def test_starting_twice_is_starting_once_and_closing_ends_it() -> None:
    callbacks: list[Callable[[], None]] = []

    class Counting(Bus):
        def on_connect(self, callback: Callable[[], None]) -> Callable[[], None]:
            callbacks.append(callback)
            return lambda: callbacks.remove(callback)

    publisher = FramePublisher(Counting("nats://127.0.0.1:1", name="test"), Subjects(), "default_p", "c1")
    await publisher.start()
    await publisher.start()
    assert len(callbacks) == 1
    await publisher.close()
    assert callbacks == []
