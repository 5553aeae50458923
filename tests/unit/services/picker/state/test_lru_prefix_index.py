import tracemalloc
from collections.abc import Iterable
from itertools import repeat

import pytest

from services.picker.state.block_states import ANNOUNCED, FORMER, MARKS, marks_of
from services.picker.state.layout import Layout
from services.picker.state.lru_prefix_index import (
    FEW,
    MAX_UNKNOWN,
    SPARE,
    UNKNOWN_BLOCKS,
    UNKNOWN_SWEEPS,
    Change,
    LruPrefixIndex,
)
from shared.bus.columns import server_hash
from shared.model import Endpoint
from tests.unit.services.picker.world import endpoint

OTHER, THIRD = MARKS[2:4]


def index(*names: str) -> LruPrefixIndex:
    made = LruPrefixIndex()
    made.relayout(Layout([endpoint(name) for name in names]))
    return made


def matches(made: LruPrefixIndex, hashes: list[int]) -> list[float]:
    counts: list[float] = made.match(hashes).tolist()
    return counts


def test_many_endpoints_are_counted_as_few_are() -> None:
    names = [f"a{number:03}" for number in range(3 * FEW + 70)]
    made = index(*names)
    for at, name in enumerate(names):
        made.add(name, list(range(1, 1 + at % 5)), 100)
    assert matches(made, [1, 2, 3, 4, 5]) == [at % 5 for at in range(len(names))]


def test_an_endpoint_that_has_gone_matches_nothing_and_its_blocks_are_swept_little_by_little() -> None:
    made = index("a1", "a2")
    made.add("a1", list(range(10)), 100)
    made.add("a2", [0, 1], 100)
    made.relayout(Layout([endpoint("a2")]))
    assert matches(made, [0, 1, 2]) == [2]
    assert (len(made), made.blocks_of("a1")) == (10, 0)
    made.sweep(4)
    assert len(made) == 8, "two of the four youngest are the other endpoint's too"
    made.sweep(4)
    made.sweep(4)
    assert len(made) == 2
    assert matches(made, [0, 1, 2]) == [2]


def test_endpoints_that_come_and_go_never_make_the_index_larger_than_its_bound() -> None:
    made = LruPrefixIndex(max_blocks=100)
    for turn in range(20):
        name = f"a{turn}"
        made.relayout(Layout([endpoint(name)]))
        for prompt in range(50):
            made.add(name, [turn * 1000 + prompt * 2, turn * 1000 + prompt * 2 + 1], 1000)
            assert len(made) <= 100
    assert made.blocks_of("a19") == 100


def test_a_full_endpoint_makes_a_little_more_room_than_it_needs_and_keeps_the_youngest() -> None:
    made = index("a1")
    capacity = 10 * SPARE
    for first in range(0, 3 * capacity, 2):
        made.add("a1", [first, first + 1], capacity)
        held = made.blocks_of("a1")
        assert min(first + 2, capacity - 10) <= held <= capacity
        assert matches(made, [first + 2 - held]) == [1], "the oldest that is held"
    assert len(made) == made.blocks_of("a1")


def test_when_endpoints_come_the_others_parts_shrink_little_by_little() -> None:
    made = LruPrefixIndex(max_blocks=8000)
    made.relayout(Layout([endpoint("a1")]))
    made.add("a1", list(range(8000)), 8000)
    made.relayout(Layout([endpoint("a1"), endpoint("a2"), endpoint("a3"), endpoint("a4")]))
    made.sweep(4000)
    assert made.blocks_of("a1") == 4000
    made.sweep(4000)
    made.sweep(4000)
    assert made.blocks_of("a1") == len(made) == 2000
    assert matches(made, [0, 1]) == [2, 0, 0, 0], "the first blocks of a prompt are the youngest"


def test_the_memory_of_blocks_that_several_of_many_endpoints_hold_is_bounded_too() -> None:
    names, blocks = [f"a{number:04}" for number in range(3000)], 60_000
    made = LruPrefixIndex(max_blocks=blocks)
    made.relayout(Layout(map(endpoint, names)))
    made.capacity_of = lambda row: 1000
    for number, name in enumerate(names):
        made.hold(server(name), [2**60 + number], OTHER)
    most = 0
    tracemalloc.start()
    try:
        for turn in range(6):
            for number in range(0, 3000, 2):  # each block is held by two
                prompt = [12_000 * turn + 4 * number + at for at in range(4)]
                for name in names[number : number + 2]:
                    made.hold(server(name), prompt, OTHER)
            made.sweep()
            most = max(most, tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert most < 1.5 * blocks * 160
    assert made.held > blocks / 5


def test_when_many_endpoints_do_not_share_blocks_any_more_each_gets_its_whole_part() -> None:
    names = [f"a{number:03}" for number in range(500)]
    made = LruPrefixIndex(max_blocks=10_000)
    made.relayout(Layout(map(endpoint, names)))
    for name in names:
        made.hold(server(name), list(range(20)), OTHER)
    for name in names[1:]:
        made.withdraw(server(name), list(range(20)), OTHER)
    assert made.held == len(made) == 20
    made.add(names[-1], list(range(200, 230)), 100)
    assert made.blocks_of(names[-1]) == 20


def test_a_block_stays_until_its_last_placement_is_forgotten() -> None:
    made = index("a1")
    for _ in range(3):
        made.add("a1", [1], 100)
    for held in (1, 1, 0):
        made.forget("a1", [1])
        assert matches(made, [1]) == [held]


# Shared with other pickers


def shared(*names: str) -> LruPrefixIndex:
    """An index whose changes are announced."""
    made = index(*names)
    made.changes = []
    return made


def server(name: str) -> int:
    return server_hash(endpoint(name))


def told(made: LruPrefixIndex) -> list[tuple[bool, list[int]]]:
    """What is to be announced, and is hereby: (withdrawn, blocks)."""
    changes, made.changes = made.changes or [], []
    return [(change.withdrawn, change.blocks) for change in changes]


def marks(made: LruPrefixIndex, name: str) -> dict[int, int]:
    """The marks of each block of an endpoint."""
    blocks, states = made.states(server(name))
    return dict(zip(blocks, marks_of(states), strict=True))


def bits(*given: int) -> int:
    """Marks as `marks_of` shows them."""
    return sum(1 << MARKS.index(mark) for mark in given)


def test_only_blocks_that_are_new_here_are_announced_and_the_last_first() -> None:
    made = shared("a1")
    made.hold(server("a1"), [2, 1], repeat(OTHER))
    made.add("a1", [1, 2, 3, 4], 100)
    assert made.changes == [Change(server("a1"), False, [4, 3])]


@pytest.mark.parametrize(
    ("placed", "peers", "left", "announced"),
    [
        (1, [], {}, [(True, [1])]),
        (2, [], {1: bits(ANNOUNCED)}, []),
        (1, [OTHER], {1: bits(OTHER)}, [(True, [1])]),
    ],
)
def test_a_block_is_withdrawn_when_no_own_placement_stands_behind_it(
    placed: int, peers: list[int], left: dict[int, int], announced: list[tuple[bool, list[int]]]
) -> None:
    made = shared("a1")
    for _ in range(placed):
        made.add("a1", [1], 100)
    for mark in peers:
        made.hold(server("a1"), [1], repeat(mark))
    told(made)
    made.forget("a1", [1])
    assert (marks(made, "a1"), told(made)) == (left, announced)


def test_what_a_peer_announced_first_is_not_withdrawn_for_a_failed_request() -> None:
    made = shared("a1")
    made.hold(server("a1"), [1], repeat(OTHER))
    made.add("a1", [1], 100)
    made.forget("a1", [1])
    assert (marks(made, "a1"), told(made)) == ({1: bits(OTHER)}, [])


@pytest.mark.parametrize(
    ("own", "peers", "left", "announced"),
    [
        (False, [OTHER], {}, []),
        (False, [OTHER, OTHER], {}, []),
        (False, [OTHER, THIRD], {1: bits(THIRD)}, []),
        (False, [THIRD], {1: bits(THIRD)}, []),
        (True, [OTHER], {1: bits(ANNOUNCED)}, [(False, [1])]),
        (True, [OTHER, THIRD], {1: bits(THIRD)}, []),
    ],
)
def test_a_peer_takes_back_its_own_word_alone(
    own: bool, peers: list[int], left: dict[int, int], announced: list[tuple[bool, list[int]]]
) -> None:
    made = shared("a1")
    for mark in peers:
        made.hold(server("a1"), [1], repeat(mark))
    if own:
        made.add("a1", [1], 100)
    made.withdraw(server("a1"), [1, 7], OTHER)
    assert (marks(made, "a1"), told(made)) == (left, announced)
    assert matches(made, [1]) == [len(left)]


def test_a_block_in_use_is_announced_again_once_while_a_quarter_of_the_others_is_replaced() -> None:
    made = shared("a1")
    made.add("a1", [1, 2], 20)
    announced = []
    for block in range(100, 140):
        made.add("a1", [block], 20)
        told(made)
        for _ in range(3):
            made.add("a1", [1, 2], 20)
        announced += told(made)
    assert 6 <= len(announced) <= 8
    assert all(change == (False, [2, 1]) for change in announced)


def test_a_block_that_a_peer_uses_stays_young_and_need_not_be_announced() -> None:
    made = shared("a1")
    made.capacity_of = lambda _row: 20
    made.add("a1", [1], 20)
    for block in range(100, 200):
        made.hold(server("a1"), [block], repeat(OTHER))
        if block % 5 == 0:
            made.hold(server("a1"), [1], repeat(OTHER))
    told(made)
    made.add("a1", [1], 20)
    assert (matches(made, [1]), told(made)) == ([1], [])
    assert made.blocks_of("a1") == 20


def test_endpoints_hold_what_they_can_and_an_equal_part_of_all() -> None:
    made = LruPrefixIndex(max_blocks=30)
    made.relayout(Layout([endpoint("a1"), endpoint("a2"), endpoint("a3")]))
    made.capacity_of = lambda row: 5 if row == 0 else 1000
    for name in ("a1", "a2", "a3"):
        made.hold(server(name), list(range(50)), repeat(OTHER))
    made.add("a3", list(range(100, 150)), 1000)
    assert [made.blocks_of(name) for name in ("a1", "a2", "a3")] == [5, 10, 10]


def test_a_peer_may_know_an_endpoint_sooner() -> None:
    made = index("a1")
    made.hold(server("a2"), [2, 1], repeat(OTHER))
    assert matches(made, [1]) == [0]
    made.relayout(Layout([endpoint("a1"), endpoint("a2")]))
    assert matches(made, [1, 2]) == [0, 2]


def test_placements_on_a_server_that_never_comes_are_dropped() -> None:
    made = index("a1")
    made.hold(server("a2"), list(range(2 * UNKNOWN_BLOCKS)), repeat(OTHER))
    assert UNKNOWN_BLOCKS - UNKNOWN_BLOCKS // SPARE <= len(made) <= UNKNOWN_BLOCKS
    for _ in range(UNKNOWN_SWEEPS):
        made.sweep()
    assert len(made) == 0
    made.relayout(Layout([endpoint("a1"), endpoint("a2")]))
    assert matches(made, [1999]) == [0, 0]


def test_of_servers_that_nobody_here_knows_a_limited_number_is_remembered() -> None:
    made = index("a1")
    for unknown in range(MAX_UNKNOWN + 50):
        made.hold(unknown, [1], repeat(OTHER))
    made.hold(server("a1"), [1], repeat(OTHER))
    assert (matches(made, [1]), len(made.servers())) == ([1], 1)
    for _ in range(UNKNOWN_SWEEPS + 1):
        made.sweep()
    made.hold(server("a2"), [2], repeat(OTHER))
    made.relayout(Layout([endpoint("a1"), endpoint("a2")]))
    assert matches(made, [2]) == [0, 1]


@pytest.mark.parametrize(
    "successor", [endpoint("a1", port=9000), Endpoint(id="a1", name="a1", address="10.0.0.1", port=8000, uid="2")]
)
def test_what_comes_late_about_a_server_that_was_replaced_isnt_said_of_its_successor(successor: Endpoint) -> None:
    made = index("a1")
    made.hold(server("a1"), [1], repeat(OTHER))
    made.relayout(Layout([successor]))
    made.hold(server("a1"), [1], repeat(OTHER))
    assert matches(made, [1]) == [0]
    made.hold(server_hash(successor), [1], repeat(OTHER))
    assert matches(made, [1]) == [1]


@pytest.mark.parametrize(
    ("into", "left"),
    [
        (0, {2: bits(THIRD), 3: bits(ANNOUNCED)}),
        (FORMER, {1: bits(FORMER), 2: bits(FORMER, THIRD), 3: bits(FORMER)}),
    ],
)
def test_a_mark_is_replaced_everywhere_in_small_steps(into: int, left: dict[int, int]) -> None:
    made = shared("a1", "a2")
    made.capacity_of = lambda _row: 100_000
    for name in ("a1", "a2"):
        made.hold(server(name), [*range(1000, 9000), 1, 2, 3], repeat(OTHER))
        made.hold(server(name), [2], repeat(THIRD))
        made.add(name, [3], 100_000)
    done: list[bool] = []
    made.convert(OTHER, into, lambda: done.append(True))
    made.sweep()
    assert not done
    swept(made, 3)
    assert done == [True]
    for name in ("a1", "a2"):
        assert {block: mark for block, mark in marks(made, name).items() if block < 1000} == left
    assert len(made) == (2 if not into else 8003)


def swept(made: LruPrefixIndex, times: int) -> None:
    for _ in range(times):
        made.sweep()


def test_marks_that_come_with_each_block_are_kept_apart() -> None:
    made = index("a1")
    given: Iterable[int] = iter([OTHER, OTHER | THIRD, THIRD, THIRD])
    made.hold(server("a1"), [4, 3, 2, 1], given)
    assert list(marks(made, "a1").values()) == [bits(OTHER), bits(OTHER, THIRD), bits(THIRD), bits(THIRD)]
