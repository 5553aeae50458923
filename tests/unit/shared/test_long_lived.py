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
def test_many_objects_of_a_block_are_not_searched_and_what_is_made_later_is(many: bool) -> None:
    thresholds = gc.get_threshold()
    gc.collect()
    with long_lived():
        with long_lived():
            kept = cycle()
        assert gc.get_threshold() == (thresholds[0], 2**30, 2**30), "there is another block"
        inside = ref(kept)
        others = [[number] for number in range((MANY + 1) * thresholds[0] if many else 100)]
    try:
        assert gc.get_threshold() == thresholds
        del kept, others
        later = ref(cycle())
        gc.collect()
        assert later() is None
        assert (inside() is not None) is many
    finally:
        gc.unfreeze()
    gc.collect()
    assert inside() is None
