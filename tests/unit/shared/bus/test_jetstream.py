"""What JetStream's API answers."""

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from shared.bus import jetstream
from shared.bus.errors import BusError
from shared.tasks import TURN


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"error": {"description": "\xff"}}', b'{"config": ' + b"[" * 100_000])
async def test_an_answer_that_cant_be_read_is_an_error_of_the_bus(data: bytes) -> None:
    class Bus:
        async def request(self, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(data=data)

    bus: Any = Bus()
    with pytest.raises(BusError, match="can't be read"):
        await jetstream.api(bus, "INFO", {})


@pytest.mark.parametrize("message", [{}, {"subject": "s", "seq": "x"}, {"subject": "s", "seq": 1, "data": 7}])
async def test_a_message_that_jetstream_doesnt_describe_is_an_error_of_the_bus(message: dict[str, Any]) -> None:
    class Bus:
        async def request(self, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(data=json.dumps({"message": message}).encode())

    bus: Any = Bus()
    with pytest.raises(BusError, match="can't be read"):
        await jetstream.last(bus, "b", "s")


@pytest.mark.parametrize("headers", [{"Status": "x"}, {"Status": "204", "Nats-Num-Pending": "7"}])
async def test_a_snapshot_whose_pages_say_nothing_of_use_is_an_error_of_the_bus(headers: dict[str, str]) -> None:
    class Bus:
        async def request_many(self, *_: Any, **__: Any) -> Any:
            stored = {"Nats-Subject": "s", "Nats-Sequence": "-1"}
            return [SimpleNamespace(data=b"", headers=stored), SimpleNamespace(data=b"", headers=headers)]

    bus: Any = Bus()
    with pytest.raises(BusError):
        await jetstream.snapshot(bus, "b", "s")


async def test_other_tasks_have_their_turn_while_a_page_is_read() -> None:
    class Bus:
        async def request_many(self, *_: Any, **__: Any) -> Any:
            stored = {"Nats-Subject": "s", "Nats-Sequence": "1"}
            page = [SimpleNamespace(data=b"x", headers=stored) for _ in range(10)]
            return [*page, SimpleNamespace(data=b"", headers={"Status": "204"})]

    turns: list[int] = []

    async def others() -> None:
        while True:
            turns.append(0)
            await asyncio.sleep(0)

    def read(_: jetstream.Stored) -> int:
        time.sleep(TURN)
        return len(turns)

    bus: Any = Bus()
    task = asyncio.create_task(others())
    found = await jetstream.snapshot(bus, "b", "s", read=read)
    task.cancel()
    assert found[-1] > 5
