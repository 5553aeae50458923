"""What lives long isn't searched for cycles, and what is made later is."""

import gc
from weakref import ref

import pytest

from shared.long_lived import MANY, long_lived


class Node:
    """One half of a cycle, or of none."""

    other: "Node | None" = None


def cycle() -> Node:
    first, second = Node(), Node()
    first.other, second.other = second, first
    return first


@pytest.mark.parametrize("many", [True, False])
async def test_many_objects_of_a_call_are_not_searched_and_what_is_made_later_is(many: bool) -> None:
    thresholds = gc.get_threshold()

    async def inner() -> Node:
        return cycle()

    async def outer() -> "ref[Node]":
        kept = await long_lived(inner())
        assert gc.get_threshold() == (thresholds[0], 2**30, 2**30), "there is another call"
        others = [[number] for number in range((MANY + 1) * thresholds[0] if many else 100)]
        del others
        return ref(kept)

    gc.collect()
    inside = await long_lived(outer())
    try:
        assert gc.get_threshold() == thresholds
        later = ref(cycle())
        gc.collect()
        assert later() is None
        assert (inside() is not None) is many
    finally:
        gc.unfreeze()
    gc.collect()
    assert inside() is None
