"""Pieces of a body, however it is cut."""

from hypothesis import given
from hypothesis import strategies as st

from services.picker.body_buffer import GATHERED, BodyBuffer, MemoryBudget


@given(st.lists(st.binary(max_size=5)))
def test_what_was_added_comes_out_once_and_in_order(pieces: list[bytes]) -> None:
    buffer = BodyBuffer()
    for piece in pieces:
        buffer.add(piece)
    assert buffer.size == sum(map(len, pieces))
    assert buffer.take() == b"".join(pieces)
    assert (buffer.size, len(buffer), buffer.take()) == (0, 0, b"")


def test_small_pieces_are_put_together_so_that_few_objects_hold_many() -> None:
    buffer = BodyBuffer()
    sent = [number.to_bytes(2, "big") for number in range(60_000)]
    for piece in sent:
        buffer.add(piece)
        assert len(buffer) <= GATHERED + len(sent) // GATHERED + 1
    assert buffer.size == 120_000
    assert repr(buffer) == f"<BodyBuffer 120000 bytes in {len(buffer)}>"
    assert buffer.take() == b"".join(sent)


def test_a_single_piece_isnt_copied() -> None:
    buffer, piece = BodyBuffer(), b"x" * 1000
    buffer.add(piece)
    assert buffer.take() is piece


def test_what_bodies_hold_together_is_what_each_of_them_holds() -> None:
    budget = MemoryBudget(100)
    first, second = BodyBuffer(budget), BodyBuffer(budget)
    first.add(b"x" * 60)
    second.add(b"y" * 40)
    assert (budget.used, budget.has_room(0), budget.has_room(1), first.full) == (100, True, False, False)
    second.add(b"z")
    assert second.full
    assert repr(budget) == "<MemoryBudget 101 of 100 bytes>"
    assert first.take() == b"x" * 60
    assert budget.used == 41
    second.clear()
    second.clear()
    assert budget.used == 0
