import asyncio
from collections.abc import Iterator

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.service.pages import SLICE, alone, exposition, json_sections, json_state, json_tree, stream_pieces


class Families(Collector):
    """One name in several families, as a collector gives what is large."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.made = 0

    def collect(self) -> Iterator[Metric]:
        for size in self.sizes:
            family = CounterMetricFamily("picks", "Picks", labels=["endpoint"])
            for number in range(size):
                family.add_metric([f"{self.made}-{number}"], number)
            self.made += 1
            yield family

    def describe(self) -> list[Metric]:
        return []


@pytest.mark.parametrize("sizes", [(0,), (SLICE,), (2 * SLICE + 1,), (SLICE, SLICE, 1)])
async def test_a_family_is_one_however_many_slices_it_comes_in(sizes: tuple[int, ...]) -> None:
    registry = CollectorRegistry()
    Counter("other", "Other", ["name"], registry=registry).labels("one").inc()
    registry.register(Families(*sizes))
    text = b"".join([piece async for piece in exposition(registry)]).decode()
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("# ") and " picks" in line] == [
        "# HELP picks_total Picks",
        "# TYPE picks_total counter",
    ]
    samples = [line for line in lines if line.startswith("picks_total{")]
    assert len(set(samples)) == len(samples) == sum(sizes)
    whole = generate_latest(registry).decode().splitlines()
    created = "other_created"
    assert [line for line in lines if created in line] == [line for line in whole if created in line]


def test_an_object_of_many_members_comes_in_slices_of_them() -> None:
    def large(size: int) -> Iterator[tuple[str, int]]:
        return ((str(number), number) for number in range(size))

    tree = {"a": 1, "none": {}, "b": {"c": large(2 * SLICE + 1), "d": [large(0) is None]}, "e": large(0)}
    pieces = list(json_tree(tree, msgspec.json.encode))
    whole = {"a": 1, "none": {}, "b": {"c": dict(large(2 * SLICE + 1)), "d": [False]}, "e": {}}
    assert msgspec.json.decode(b"".join(pieces)) == whole
    assert max(piece.count(b":") for piece in pieces) <= SLICE
    assert b"".join(json_tree({}, msgspec.json.encode)) == b"{}"


def test_an_iterator_in_a_state_is_a_list_whose_items_are_written_one_by_one_also_in_an_item() -> None:
    def pool(name: str) -> dict[str, object]:
        return {"pool": name, "endpoints": iter([f"{name}1", f"{name}2"]), "peers": []}

    state = {**pool("a"), "pools": (json_state(pool(name), msgspec.json.encode) for name in "bc")}
    pieces = list(json_state(state, msgspec.json.encode))
    whole = [{"pool": name, "endpoints": [f"{name}1", f"{name}2"], "peers": []} for name in "abc"]
    assert msgspec.json.decode(b"".join(pieces)) == {**whole[0], "pools": whole[1:]}
    assert max(piece.count(b'1"') + piece.count(b'2"') for piece in pieces) == 1


async def test_other_work_goes_on_between_the_slices_of_a_page() -> None:
    registry = CollectorRegistry()
    registry.register(Families(10 * SLICE))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(other())
    _ = [piece async for piece in exposition(registry)]
    assert turns >= 10
    turns = 0
    items = [{"id": number} for number in range(10)]
    pieces = json_sections({"total": 12}, {"decisions": items}, msgspec.json.encode)
    text = b"".join([piece async for piece in stream_pieces(pieces)])
    assert turns >= 10
    assert msgspec.json.decode(text) == {"total": 12, "decisions": items}
    working.cancel()


async def test_of_all_pages_one_piece_is_made_in_a_turn_of_the_event_loop() -> None:
    turn = 0
    made: list[int] = []

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def items() -> Iterator[int]:
        for number in range(5):
            made.append(turn)
            yield number

    async def page() -> list[bytes]:
        return [piece async for piece in stream_pieces(json_sections({}, {"items": items()}, msgspec.json.encode))]

    counting = asyncio.create_task(count())
    await asyncio.gather(*(page() for _ in range(10)), *(alone(lambda: made.append(turn)) for _ in range(10)))
    counting.cancel()
    assert len(set(made)) == len(made) == 60
