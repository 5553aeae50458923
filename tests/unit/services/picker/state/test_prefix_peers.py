import pytest
from msgspec.structs import replace

from services.picker.state import lru_prefix_index, prefix_peers
from services.picker.state.block_states import MAX_MARKS, marks_of
from services.picker.state.layout import Layout
from services.picker.state.lru_prefix_index import LruPrefixIndex
from services.picker.state.prefix_peers import (
    AGAIN,
    ATTEMPTS,
    BATCH,
    DIFFERENT,
    FORGOTTEN,
    LISTENING,
    MAX_BATCHES,
    MAX_HELD,
    MAX_ORIGINS,
    OVERTAKEN,
    Origin,
    PrefixPeers,
    Restore,
)
from shared.bus.columns import pack_counts, pack_hashes, server_hash
from shared.bus.messages import MAX_BLOCKS, PrefixBatch, PrefixOrigin, PrefixPiece
from tests.unit.services.picker.world import endpoint

SERVER = server_hash(endpoint("a1"))


class World:
    def __init__(self, *, complete: bool = True) -> None:
        self.index = LruPrefixIndex()
        self.index.relayout(Layout([endpoint("a1")]))
        self.index.changes = []
        self.peers = PrefixPeers(self.index)
        if complete:
            self.peers.complete()
        self.now = 0.0

    def hear(self, sequence: int, *blocks: int, id: str = "p2", run: int = 1, withdrawn: bool = False) -> None:
        self.peers.receive(batch(sequence, *blocks, id=id, run=run, withdrawn=withdrawn), self.now)

    def held(self) -> set[int]:
        return set(self.index.states(SERVER)[0])

    def asked(self, after: float = 0.0) -> list[tuple[str, int]]:
        """Who is to be asked at once, and for the batches after which."""
        self.now += after
        return [(origin.id, origin.applied) for origin in self.peers.missing(self.now)]


def batch(sequence: int, *blocks: int, id: str = "p2", run: int = 1, withdrawn: bool = False) -> PrefixBatch:
    rows = 1 if blocks else 0
    return PrefixBatch(
        sender=id,
        run=run,
        sequence=sequence,
        hashing="",
        servers=pack_hashes([SERVER] * rows),
        withdrawn=bytes([withdrawn] * rows),
        counts=pack_counts([len(blocks)] * rows),
        blocks=pack_hashes(list(blocks)),
    )


def test_batches_are_applied_in_their_order_each_once() -> None:
    world = World()
    world.hear(1, 1)
    world.hear(3, 1, withdrawn=True)
    world.hear(2, 2, 1)
    assert world.held() == {2}
    world.hear(1, 1)
    world.hear(2, 2, 1)
    assert world.held() == {2}
    assert (world.asked(), world.asked(1.0), world.peers.batches, world.peers.blocks) == ([], [], 3, 4)


def test_a_missing_batch_is_asked_for_unless_it_was_only_overtaken() -> None:
    world = World()
    world.hear(2, 2)
    assert world.asked() == []
    world.hear(1, 1)
    assert world.asked(OVERTAKEN) == []
    world.hear(5)
    assert (world.asked(), world.asked(OVERTAKEN)) == ([], [("p2", 2)]), "a heartbeat tells of batches, too"
    assert (world.asked(OVERTAKEN), world.asked(AGAIN), world.peers.gaps) == ([], [("p2", 2)], 1)


def test_an_origin_that_never_answers_is_done_without_and_is_new_when_it_is_heard_again() -> None:
    world = World()
    world.hear(1, 1)
    world.hear(3, 3)
    world.asked()
    assert [world.asked(AGAIN) for _ in range(ATTEMPTS + 1)] == [[("p2", 1)]] * ATTEMPTS + [[]]
    assert world.held() == {1}, "what was applied stays, what was held has gone"
    world.hear(4, 4)
    world.asked()
    assert world.asked(OVERTAKEN) == [("p2", 0)]


def test_numbers_that_its_sender_never_used_are_forgotten_with_the_next_answer() -> None:
    world = World()
    world.hear(2**62, 9)
    world.hear(1, 1)
    world.asked()
    ((_, origin),) = [(item.id, item) for item in world.peers.missing(world.now + 1)]
    world.peers.answered(origin, 1)
    assert world.asked(10.0) == []
    world.hear(2, 2)
    assert world.held() == {1, 2}


def test_a_dump_with_a_false_number_of_an_origin_is_noticed_and_restored_from_the_origin() -> None:
    world = World(complete=False)
    world.hear(0)
    forged = PrefixOrigin(id="p2", run=1, sequence=2**63 - 1, digest=0)
    restore = Restore(world.peers, world.index, "me", world.now, None)
    restore.take(PrefixPiece(run=9, sequence=0, origins=[PrefixOrigin(id="p9", run=9, sequence=0), forged]))
    restore.finish(0)
    different: list[Origin] = []
    for number in range(1, 4):
        world.peers.receive(replace(batch(number, number), digest=number), world.now)
        world.now += DIFFERENT / 2
        different += world.peers.different(world.now)
    (origin,) = different
    restore = Restore(world.peers, world.index, "me", world.now, origin)
    world.hear(4, 4)
    restore.take(
        PrefixPiece(
            run=1,
            sequence=3,
            origins=[PrefixOrigin(id="p2", run=1, sequence=3, digest=3)],
            servers=pack_hashes([SERVER]),
            counts=pack_counts([3]),
            blocks=pack_hashes([1, 2, 3]),
            marks=pack_hashes([1, 1, 1]),
        )
    )
    restore.finish(3)
    assert (world.held(), origin.applied, origin.differs_since) == ({1, 2, 3, 4}, 4, None)
    world.hear(5, 5)
    assert world.held() == {1, 2, 3, 4, 5}


def test_an_overtaken_heartbeat_is_no_difference() -> None:
    world = World()
    world.hear(1, 1)
    world.hear(2, 2)
    (origin,) = world.peers.origins()
    world.peers.receive(replace(batch(1), digest=7), world.now)
    assert origin.differs_since == world.now
    world.peers.receive(replace(batch(2), digest=origin.digest), world.now)
    assert origin.differs_since is None


@pytest.mark.parametrize(("silent", "counts"), [(0.0, True), (LISTENING - 1, True), (LISTENING, False)])
def test_an_origin_that_is_silent_does_not_count_as_different(silent: float, counts: bool) -> None:
    world = World()
    world.hear(1, 1)
    for world.now in (1.0, 1.0 + DIFFERENT):
        world.peers.receive(replace(batch(1), digest=7), world.now)
    world.now += silent
    assert world.peers.differs_for(world.now) == (DIFFERENT + silent if counts else 0.0)
    assert len(world.peers.different(world.now)) == counts


def test_what_is_held_is_bounded() -> None:
    world = World(complete=False)
    size = BATCH + len("p2") + 8 + 1 + 4 + 8 * MAX_BLOCKS
    for sequence in range(1, MAX_HELD // size + 50):
        world.hear(sequence, *range(MAX_BLOCKS))
    world.peers.complete()
    assert world.peers.blocks == MAX_BLOCKS
    while world.peers.blocks < MAX_HELD // size * MAX_BLOCKS:
        before = world.peers.blocks
        world.asked()
        assert before < world.peers.blocks <= before + 2 * MAX_BLOCKS, "some at a time"
    world.hear(MAX_HELD // size + 50, 1)
    assert world.asked(1.0) == [("p2", MAX_HELD // size)], "the others are missing"


def test_few_batches_are_held_of_one_origin() -> None:
    """To let go of very many at once takes long."""
    world = World()
    for sequence in range(2, MAX_BATCHES + 50):
        world.hear(sequence, sequence)
    world.hear(1, 1)
    while world.peers.batches < MAX_BATCHES:
        before = world.peers.batches
        world.asked()
        assert world.peers.batches > before
    assert world.held() == set(range(1, MAX_BATCHES + 2))
    assert world.asked(1.0) == [("p2", MAX_BATCHES + 1)], "the others are missing"


def test_marks_of_a_dump_are_translated_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of origins that the dump doesn't name say nothing."""
    monkeypatch.setattr(prefix_peers, "MAX_TRANSLATED", 1)
    world = World(complete=False)
    restore = Restore(world.peers, world.index, "p1", world.now, None)
    for number in range(3):
        blocks = [10 * number + offset for offset in range(1, 5)]
        marks = [1 << 40 | 1, 1 << 50 | 1, 2, 3 | number << 30]
        restore.take(
            PrefixPiece(
                run=1,
                origins=[PrefixOrigin(id=id, run=1, sequence=9) for id in ("p2", "p3")],
                sequence=9,
                servers=pack_hashes([SERVER]),
                counts=pack_counts([4]),
                blocks=pack_hashes(blocks),
                marks=pack_hashes(marks),
            )
        )
    blocks, states = world.index.states(SERVER)
    found = dict(zip(blocks, marks_of(states), strict=True))
    assert len(found) == 12
    for number in range(3):
        one, same, other, both = (found[10 * number + offset] for offset in range(1, 5))
        assert one == same != other
        assert both == one | other


def test_held_batches_of_many_rows_count_for_them() -> None:
    world = World(complete=False)
    columns = (8 + 1 + 4 + 8) * MAX_BLOCKS
    most = MAX_HELD // (BATCH + len("p2") + columns)
    many = replace(
        batch(1, *range(MAX_BLOCKS)),
        servers=pack_hashes([SERVER] * MAX_BLOCKS),
        withdrawn=bytes(MAX_BLOCKS),
        counts=pack_counts([1] * MAX_BLOCKS),
    )
    for sequence in range(1, most + 50):
        world.peers.receive(replace(many, sequence=sequence), 0.0)
    world.peers.complete()
    for _ in range(most):
        world.asked()
    assert world.peers.batches == most


def test_what_several_origins_have_held_is_applied_some_at_a_time() -> None:
    world = World(complete=False)
    for id in ("p2", "p3", "p4"):
        for sequence in (1, 2):
            world.hear(sequence, *range(MAX_BLOCKS), id=id)
    world.peers.complete()
    counts = [world.peers.blocks // MAX_BLOCKS]
    for _ in range(6):
        world.asked()
        counts.append(world.peers.blocks // MAX_BLOCKS)
    assert counts == [1, 2, 3, 4, 5, 6, 6]


def test_an_origin_that_is_being_asked_is_neither_asked_again_nor_given_up() -> None:
    world = World()
    world.hear(1, 1)
    world.peers.receive(replace(batch(1), digest=1), 0.0)
    world.hear(3, 3)
    world.asked()
    (origin,) = world.peers.missing(OVERTAKEN)
    origin.requested = True
    world.now = OVERTAKEN
    assert [world.asked(FORGOTTEN) for _ in range(ATTEMPTS + 1)] == [[]] * (ATTEMPTS + 1)
    assert world.peers.different(world.now) == []
    world.peers.expire(world.now)
    origin.requested = False
    world.hear(3)
    assert world.peers.different(world.now) == [origin]
    assert world.asked() == [("p2", 1)]


def test_runs_of_a_picker_are_told_apart_and_late_words_of_the_former_one_do_no_harm() -> None:
    world = World()
    world.hear(1, 1, run=1)
    world.hear(1, 1, 2, run=2)
    world.hear(2, 1, run=1, withdrawn=True)
    assert world.held() == {1, 2}
    assert world.peers.listening(world.now) == 1


def test_origins_are_forgotten_and_their_blocks_stay() -> None:
    world = World()
    for number in range(MAX_ORIGINS + 5):
        world.hear(1, number, id=f"p{number}")
    assert len(world.held()) == world.peers.listening(0.0) == MAX_ORIGINS
    world.now = LISTENING
    world.peers.expire(world.now)
    world.hear(1, 5000, id="late")
    assert len(world.held()) == MAX_ORIGINS
    world.now = LISTENING + 1
    assert world.peers.listening(world.now) == 0
    world.peers.expire(world.now)
    world.hear(1, 5000, id="late")
    assert len(world.held()) == MAX_ORIGINS + 1
    assert world.peers.state()["origins"] == [{"id": "late", "run": 1, "applied": 1, "latest": 1}]


def test_more_pickers_than_marks_share_one_and_take_nothing_back() -> None:
    world = World()
    for number in range(MAX_MARKS + 2):
        world.hear(1, number, 1000, id=f"p{number}")
    world.hear(2, MAX_MARKS + 1, 1000, id=f"p{MAX_MARKS + 1}", withdrawn=True)
    assert MAX_MARKS + 1 in world.held()
    world.hear(2, 0, id="p0", withdrawn=True)
    assert 0 not in world.held()
    for world.now in (FORGOTTEN, FORGOTTEN + 1):
        world.hear(3, 2000, id=f"p{MAX_MARKS + 1}")
        world.peers.expire(world.now)
        world.index.sweep()
    world.hear(4, 3000, id=f"p{MAX_MARKS + 1}")
    world.hear(5, 3000, id=f"p{MAX_MARKS + 1}", withdrawn=True)
    assert 3000 not in world.held(), "it has a mark once others have gone"


def test_a_dump_says_how_far_it_goes_and_what_was_held_follows_it() -> None:
    world = World(complete=False)
    world.hear(2, 3, id="p2")
    world.hear(3, 2, id="p2", withdrawn=True)
    world.hear(8, 8, id="p3")
    origins = [
        PrefixOrigin(id="p3", run=1, sequence=7),
        PrefixOrigin(id="", run=0, sequence=0),
        PrefixOrigin(id="p2", run=1, sequence=1),
        PrefixOrigin(id="p1", run=7, sequence=4),
    ]
    blocks, marks = [1, 2, 3, 4], [0b0001, 0b0100, 0b1010, 2**40]
    piece = PrefixPiece(
        run=1,
        sequence=9,
        origins=origins,
        servers=pack_hashes([SERVER]),
        counts=pack_counts([4]),
        blocks=pack_hashes(blocks),
        marks=pack_hashes(marks),
    )
    restore = Restore(world.peers, world.index, "p1", world.now, None)
    restore.take(piece)
    assert world.peers.state()["complete"] is False
    restore.finish(9)
    assert world.held() == {1, 3, 4, 8}
    assert not world.peers.joining
    assert world.asked(1.0) == []


def test_a_server_of_a_dump_for_which_there_is_no_room_leaves_the_marks_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lru_prefix_index, "MAX_UNKNOWN", 0)
    world = World(complete=False)
    piece = PrefixPiece(
        run=1,
        sequence=1,
        origins=[PrefixOrigin(id="p2", run=1, sequence=1), PrefixOrigin(id="p3", run=1, sequence=1)],
        servers=pack_hashes([SERVER + 1, SERVER]),
        counts=pack_counts([2, 2]),
        blocks=pack_hashes([1, 2, 3, 4]),
        marks=pack_hashes([1, 1, 2, 2]),
    )
    restore = Restore(world.peers, world.index, "p1", 0.0, None)
    restore.take(piece)
    restore.finish(1)
    world.hear(2, 3, 4, id="p2", withdrawn=True)
    assert world.held() == {3, 4}
    world.hear(2, 3, 4, id="p3", withdrawn=True)
    assert world.held() == set()


def test_a_dump_of_an_origin_replaces_all_that_it_had_said() -> None:
    world = World()
    world.hear(1, 1, 2)
    world.hear(1, 2, 5, id="p3")
    world.hear(9, 9)
    world.asked()
    (origin,) = world.peers.missing(1.0)
    restore = Restore(world.peers, world.index, "p1", 1.0, origin)
    world.hear(10, 10)
    assert world.held() == {1, 2, 5}
    piece = PrefixPiece(
        run=1,
        sequence=8,
        origins=[PrefixOrigin(id="p2", run=1, sequence=8)],
        servers=pack_hashes([SERVER]),
        counts=pack_counts([2]),
        blocks=pack_hashes([3, 4]),
        marks=pack_hashes([1, 1]),
    )
    restore.take(piece)
    restore.finish(8)
    for _ in range(3):
        world.index.sweep()
    assert world.held() == {2, 3, 4, 5, 9, 10}
    assert world.peers.dumps == 1


def test_an_abandoned_dump_leaves_nothing_and_can_be_had_again() -> None:
    world = World()
    world.hear(3, 3)
    world.asked()
    (origin,) = world.peers.missing(1.0)
    origins = [PrefixOrigin(id="p2", run=1, sequence=2)]
    half = PrefixPiece(
        run=1,
        sequence=2,
        more=True,
        origins=origins,
        servers=pack_hashes([SERVER]),
        counts=pack_counts([1]),
        blocks=pack_hashes([1]),
        marks=pack_hashes([1]),
    )
    restore = Restore(world.peers, world.index, "p1", 1.0, origin)
    restore.take(half)
    restore.abandon()
    for _ in range(3):
        world.index.sweep()
    assert world.held() == set()
    assert world.asked(1.0 + AGAIN) == [("p2", 0)]
