"""Pieces of a body, however it is cut."""

from hypothesis import given
from hypothesis import strategies as st

from services.picker.chunks import GATHERED, Chunks, Held


@given(st.lists(st.binary(max_size=5)))
def test_what_was_added_comes_out_once_and_in_order(pieces: list[bytes]) -> None:
    chunks = Chunks()
    for piece in pieces:
        chunks.add(piece)
    assert chunks.size == sum(map(len, pieces))
    assert chunks.take() == b"".join(pieces)
    assert (chunks.size, len(chunks), chunks.take()) == (0, 0, b"")


def test_small_pieces_are_put_together_so_that_few_objects_hold_many() -> None:
    chunks = Chunks()
    sent = [number.to_bytes(2, "big") for number in range(60_000)]
    for piece in sent:
        chunks.add(piece)
        assert len(chunks) <= GATHERED + len(sent) // GATHERED + 1
    assert chunks.size == 120_000
    assert repr(chunks) == f"<Chunks 120000 bytes in {len(chunks)}>"
    assert chunks.take() == b"".join(sent)


def test_a_single_piece_isnt_copied() -> None:
    chunks, piece = Chunks(), b"x" * 1000
    chunks.add(piece)
    assert chunks.take() is piece


def test_what_bodies_hold_together_is_what_each_of_them_holds() -> None:
    held = Held(100)
    first, second = Chunks(held), Chunks(held)
    first.add(b"x" * 60)
    second.add(b"y" * 40)
    assert (held.size, held.takes(0), held.takes(1), first.full) == (100, True, False, False)
    second.add(b"z")
    assert second.full
    assert repr(held) == "<Held 101 of 100 bytes>"
    assert first.take() == b"x" * 60
    assert held.size == 41
    second.clear()
    second.clear()
    assert held.size == 0
