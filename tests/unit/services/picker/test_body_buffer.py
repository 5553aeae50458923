"""Pieces of a body, however it is cut."""

import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.body_buffer import GATHERED, BodyBuffer, MemoryBudget


@given(st.lists(st.binary(max_size=5)))
def test_what_was_added_comes_out_once_and_in_order(pieces: list[bytes]) -> None:
    chunks = BodyBuffer()
    for piece in pieces:
        chunks.add(piece)
    assert chunks.size == sum(map(len, pieces))
    assert chunks.take() == b"".join(pieces)
    assert (chunks.size, len(chunks), chunks.take()) == (0, 0, b"")


def test_small_pieces_are_put_together_so_that_few_objects_hold_many() -> None:
    chunks = BodyBuffer()
    sent = [number.to_bytes(2, "big") for number in range(60_000)]
    for count, piece in enumerate(sent, 1):
        chunks.add(piece)
        assert len(chunks) == sum(divmod(count, GATHERED + 1)), "each is copied once"
    assert chunks.size == 120_000
    assert repr(chunks) == f"<BodyBuffer 120000 bytes in {len(chunks)}>"
    assert chunks.take() == b"".join(sent)


def test_a_single_piece_isnt_copied() -> None:
    chunks, piece = BodyBuffer(), b"x" * 1000
    chunks.add(piece)
    assert chunks.take() is piece


def test_what_bodies_hold_together_is_what_each_of_them_holds() -> None:
    budget = MemoryBudget(100)
    first, second = BodyBuffer(budget), BodyBuffer(budget)
    first.add(b"x" * 60)
    second.add(b"y" * 40)
    assert (budget.used, budget.has_room(0), budget.has_room(1), first.has_room()) == (100, True, False, True)
    second.add(b"z")
    assert not second.has_room()
    assert repr(budget) == "<MemoryBudget 101 of 100 bytes>"
    assert first.take() == b"x" * 60
    assert budget.used == 41
    second.clear()
    second.clear()
    assert budget.used == 0


def test_a_part_of_a_budget_counts_in_both_and_leaves_the_rest() -> None:
    whole = MemoryBudget(100)
    part = whole.part(40)
    response, request = BodyBuffer(part), BodyBuffer(whole)
    response.add(b"x" * 41)
    assert (part.used, whole.used, response.has_room(), request.has_room(59)) == (41, 41, False, True)
    response.clear()
    request.add(b"y" * 90)
    assert (part.used, whole.used, response.has_room(10), response.has_room(11)) == (0, 90, True, False)


@pytest.mark.parametrize(
    ("bodies", "more", "stay"),
    [
        pytest.param({"large": (60, 0), "small": (4, 0)}, 36, {"large", "small"}, id="there is room"),
        pytest.param({"large": (60, 0), "small": (4, 0)}, 37, {"small"}, id="the largest goes"),
        pytest.param({"large": (60, 90), "old": (30, 0)}, 20, {"large"}, id="the one goes that was budget for longest"),
        pytest.param({"large": (60, 90), "old": (2, 0)}, 39, {"old"}, id="what is small costs little for long"),
        pytest.param({"a": (30, 0), "b": (30, 1), "c": (30, 2)}, 50, {"c"}, id="as many go as have to"),
        pytest.param({"a": (60, 0), "complete": (30, 0)}, 90, {"a", "complete"}, id="none goes in vain"),
    ],
)
def test_unfinished_bodies_make_room(bodies: dict[str, tuple[int, float]], more: int, stay: set[str]) -> None:
    now = 0.0
    budget = MemoryBudget(100, lambda: now)
    chunks = {}
    for name, (size, began) in bodies.items():
        now = began
        chunks[name] = BodyBuffer(budget, droppable=True)
        chunks[name].add(b"x" * size)
        if name == "complete":
            chunks[name].whole()
    now = 100.0
    assert budget.has_room(more) == (more <= 70)
    assert {name for name, item in chunks.items() if not item.dropped} == stay
    assert budget.used == sum(bodies[name][0] for name in stay)


def test_more_room_is_made_than_is_missing_so_that_few_pieces_have_to_look_for_it() -> None:
    budget = MemoryBudget(1000)
    many = [BodyBuffer(budget, droppable=True) for _ in range(1000)]
    for each_body_buffer in many:
        each_body_buffer.add(b"x")
    assert budget.has_room(1)
    assert budget.used == 938
    assert sum(body_buffer.dropped for body_buffer in many) == 62


def test_a_body_that_is_over_is_forgotten_even_if_nothing_of_it_counts_any_more() -> None:
    class Owner:
        def drop(self) -> None:
            raise AssertionError

    budget, owner = MemoryBudget(100), Owner()
    body = BodyBuffer(budget, droppable=True)
    body.account(60, owner.drop)
    body.account(-60, owner.drop)
    body.clear()
    kept = weakref.ref(owner)
    del body, owner
    assert kept() is None
    assert budget.has_room(100)
