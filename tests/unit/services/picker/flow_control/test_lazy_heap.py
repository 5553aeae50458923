import gc
import weakref

import pytest

from services.picker.flow_control.lazy_heap import LazyHeap
from services.picker.flow_control.waiting import Waiting


def queued(name: str) -> Waiting:
    item = Waiting(name, 0, 0.0)
    item.queued = True
    return item


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([(3, 0), (1, 0), (2, 0)], "bca"),
        ([(1, 0), (1, 0), (1, 0)], "abc"),
        ([(1, 2), (1, 1), (0, 9)], "cba"),
        ([(float("inf"), 0), (-1, 0)], "ba"),
    ],
)
def test_the_least_first_then_the_tie_then_the_first(entries: list[tuple[float, float]], expected: str) -> None:
    heap = LazyHeap()
    for name, (key, tie) in zip("abc", entries, strict=False):
        heap.push(key, tie, queued(name))
    popped = []
    while (item := heap.pop()) is not None:
        popped.append(item.flow)
    assert "".join(popped) == expected


class Owner:
    """Something that a weak reference can be had of."""


def test_the_dead_are_let_go_when_they_are_most() -> None:
    heap = LazyHeap()
    owners = [Owner() for _ in range(1000)]
    kept = [weakref.ref(owner) for owner in owners]
    items = [queued(str(number)) for number in range(1000)]
    for number, (item, owner) in enumerate(zip(items, owners, strict=True)):
        item.owner = owner
        heap.push(number, 0.0, item)
    for item in items[:501]:
        item.queued = False
        heap.discard()
    assert len(heap) == 499
    del items, item, owners, owner
    gc.collect()
    assert sum(reference() is not None for reference in kept) == 499
    head = heap.peek()
    assert head is not None
    assert head.flow == "501"
