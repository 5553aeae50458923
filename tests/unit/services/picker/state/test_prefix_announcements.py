from collections.abc import Iterator

import pytest

from services.picker.state.block_states import FORMER, MARKS
from services.picker.state.layout import Layout
from services.picker.state.lru_prefix_index import Change, LruPrefixIndex
from services.picker.state.prefix_announcements import (
    ANSWER,
    IDLE,
    MAX_DUMPS,
    MAX_REPEATED,
    Announcements,
    Dumps,
    dump,
    parts,
)
from shared.bus.codec import decode, encode
from shared.bus.columns import server_hash, unpack_hashes
from shared.bus.messages import MAX_BLOCKS, PrefixBatch, PrefixPiece
from tests.unit.services.picker.world import endpoint


def change(blocks: int, *, withdrawn: bool = False, server: int = 1) -> Change:
    return Change(server, withdrawn, list(range(blocks)))


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ([], []),
        ([3, 4], [[3, 4]]),
        ([MAX_BLOCKS - 1, 1, 1], [[MAX_BLOCKS - 1, 1], [1]]),
        ([MAX_BLOCKS - 1, 2], [[MAX_BLOCKS - 1], [2]]),
        ([2 * MAX_BLOCKS + 5, 1], [[MAX_BLOCKS], [MAX_BLOCKS], [5, 1]]),
    ],
)
def test_a_batch_has_as_many_changes_as_it_may(changes: list[int], sizes: list[list[int]]) -> None:
    made = list(parts([change(blocks) for blocks in changes]))
    assert [[len(batch.blocks) for batch in part] for part in made] == sizes


def test_batches_are_numbered_and_heartbeats_have_the_last_number() -> None:
    mine = Announcements("p1", 7)
    first = mine.batch("1: x", complete=True, changes=[change(3), change(2, withdrawn=True, server=9)])
    assert decode(PrefixBatch, encode(first)) == first
    assert unpack_hashes(first.servers).tolist() == [1, 9]
    assert (first.sequence, first.withdrawn, unpack_hashes(first.blocks).tolist()) == (1, b"\0\1", [0, 1, 2, 0, 1])
    beat = mine.batch("1: x", complete=False)
    assert (beat.sender, beat.run, beat.sequence, beat.servers, beat.complete) == ("p1", 7, 1, b"", False)


def sent(mine: Announcements, payloads: list[bytes]) -> Announcements:
    for payload in payloads:
        mine.batch("", complete=True, changes=[change(1)])
        mine.sent(payload)
    return mine


def test_the_last_batches_can_be_repeated() -> None:
    mine = sent(Announcements("p1", 7), [b"one", b"two", b"three"])
    assert mine.since(3) == ([], False)
    assert mine.since(1) == ([b"two", b"three"], False)
    assert mine.since(0) == ([b"one", b"two", b"three"], False)
    assert mine.since(4) is None
    mine.skip()
    assert (mine.since(3), mine.since(4)) == (None, ([], False))
    sent(mine, [b"five"])
    assert (mine.since(3), mine.since(4)) == (None, ([b"five"], False))


def test_what_can_be_repeated_is_bounded_and_comes_in_pieces() -> None:
    size = ANSWER // 2 - 10
    mine = sent(Announcements("p1", 7), [bytes(size)] * 100)
    kept = MAX_REPEATED // size
    if kept < 100:
        assert mine.since(100 - kept - 1) is None
    batches, more = mine.since(90) or ([], False)
    assert (len(batches), more) == (2, True)
    large = sent(Announcements("p1", 7), [bytes(2 * ANSWER)] * 2)
    assert large.since(0) == ([bytes(2 * ANSWER)], True), "at least one"


def test_a_dump_has_what_stands_on_the_word_of_known_pickers_in_pieces() -> None:
    names = [f"a{number}" for number in range(5)]
    index = LruPrefixIndex()
    index.relayout(Layout([endpoint(name) for name in names]))
    for name in names:
        server = server_hash(endpoint(name))
        index.hold(server, range(1000), [MARKS[3]] * 1000)
        index.hold(server, range(500, 1500), [FORMER] * 1000)
        index.add(name, [5000, 1], 10_000)
    mine = Announcements("p1", 7)

    def dumped(known: int) -> tuple[list[PrefixPiece], dict[int, int]]:
        """The pieces; of how many servers each block is in them."""
        pieces = list(dump(index, mine, [], known, 4))
        held: dict[int, int] = {}
        for piece in pieces:
            assert decode(PrefixPiece, encode(piece)) == piece
            assert not any(mark & ~known for mark in unpack_hashes(piece.marks).tolist())
            for block in unpack_hashes(piece.blocks).tolist():
                held[block] = held.get(block, 0) + 1
        assert [piece.more for piece in pieces] == [True] * (len(pieces) - 1) + [False]
        assert {piece.session for piece in pieces} == {4}
        return pieces, held

    pieces, held = dumped(0b1011)
    assert len(pieces) == 5 * 1501 // MAX_BLOCKS + 1
    assert held == dict.fromkeys([*range(1500), 5000], 5)
    pieces, held = dumped(0b0001)
    assert held == {5000: 5}
    pieces, held = dumped(0b0010)
    assert held == dict.fromkeys(range(500, 1500), 5)


def pieces(session: int) -> Iterator[PrefixPiece]:
    for number in range(3):
        yield PrefixPiece(run=1, sequence=1, session=session, more=number < 2)


def test_a_dump_ends_for_another_one_only_if_nobody_takes_it() -> None:
    dumps = Dumps()
    first, *others = [dumps.begin(pieces, 0.0) for _ in range(MAX_DUMPS)]
    assert not dumps.have_room(IDLE)
    assert dumps.next(first, IDLE) == PrefixPiece(run=1, sequence=1, session=first, more=True)
    assert dumps.have_room(IDLE + 1)
    assert dumps.next(others[0], IDLE + 1) is None
    assert [dumps.next(first, IDLE + 1) is None for _ in range(3)] == [False, False, True]
