"""What JetStream's API answers."""

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from itertools import count, repeat
from types import SimpleNamespace
from typing import Any

import pytest

from shared.bus import jetstream
from shared.bus.errors import BusError, JetStreamError
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


def stored(sequence: int = 1, data: bytes = b"x") -> Any:
    return SimpleNamespace(data=data, headers={"Nats-Subject": "$KV.b.s", "Nats-Sequence": str(sequence)})


def answering(answers: Iterable[Any]) -> Any:
    """A bus on which a request has these answers."""

    class Bus:
        max_payload = 2**20

        async def request_many(self, *_: Any, last: Callable[[Any], object], **__: Any) -> Any:
            return next(answer for answer in answers if last(answer))

    return Bus()


@pytest.mark.parametrize("headers", [{"Status": "x"}, {"Status": "204", "Nats-Num-Pending": "7"}])
async def test_a_snapshot_whose_pages_say_nothing_of_use_is_an_error_of_the_bus(headers: dict[str, str]) -> None:
    bus = answering([stored(-1), SimpleNamespace(data=b"", headers=headers)])
    with pytest.raises(BusError):
        await jetstream.snapshot(bus, "b", "s")


@pytest.mark.parametrize(("size", "most"), [(0, 501), (2**20, 6)])
async def test_a_page_that_has_more_than_was_asked_for_is_not_kept(size: int, most: int) -> None:
    answers = map(stored, count(1), repeat(bytes(size)))
    with pytest.raises(JetStreamError, match="more than was asked for"):
        await jetstream.snapshot(answering(answers), "b", "s")
    assert next(answers).headers["Nats-Sequence"] == str(most + 1)


async def test_other_tasks_have_their_turn_while_a_page_is_read() -> None:
    turns: list[int] = []

    async def others() -> None:
        while True:
            turns.append(0)
            await asyncio.sleep(0)

    def read(_: jetstream.Stored) -> int:
        time.sleep(TURN)
        return len(turns)

    bus = answering([*map(stored, range(1, 11)), SimpleNamespace(data=b"", headers={"Status": "204"})])
    task = asyncio.create_task(others())
    found = await jetstream.snapshot(bus, "b", "s", read=read)
    task.cancel()
    assert found[-1] > 5
