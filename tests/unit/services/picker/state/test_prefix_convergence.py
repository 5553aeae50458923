"""Several pickers share their placements over a network that loses, repeats and reorders batches. Once it is quiet,
they all hold the same, and without restarts exactly what was placed and not taken back.
"""

from collections import Counter
from collections.abc import Iterator
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from services.picker.state import prefix_announcements
from services.picker.state.layout import Layout
from services.picker.state.lru_prefix_index import LruPrefixIndex
from services.picker.state.prefix_announcements import Announcements, dump, parts
from services.picker.state.prefix_peers import AGAIN, OVERTAKEN, Origin, PrefixPeers, Restore
from shared.bus.columns import server_hash
from shared.bus.messages import PrefixBatch, PrefixPiece
from tests.unit.services.picker.world import endpoint

ENDPOINTS = ["a1", "a2"]
LAYOUT = Layout([endpoint(name) for name in ENDPOINTS])
PICKERS = ["p1", "p2", "p3"]
PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)
WHO = st.sampled_from(PICKERS)
ROOM = 10_000
PIECE = 3
"""Blocks of a piece and of a batch."""


def hashes(prompt: tuple[int, ...]) -> list[int]:
    """Of a prompt of digits: each stands for all that precedes it."""
    return [int("1" + "".join(map(str, prompt[:end]))) for end in range(1, len(prompt) + 1)]


class Picker:
    def __init__(self, id: str, run: int) -> None:
        self.index = LruPrefixIndex()
        self.index.relayout(LAYOUT)
        self.index.changes = []
        self.mine = Announcements(id, run)
        self.peers = PrefixPeers(self.index)
        self.placed: list[tuple[str, tuple[int, ...]]] = []

    def announce(self) -> list[PrefixBatch]:
        changes, self.index.changes = self.index.changes or [], []
        batches = [self.mine.batch("", complete=True, changes=part) for part in parts(changes)]
        for _ in batches:
            self.mine.sent(b"")
        return batches

    def heartbeat(self) -> PrefixBatch:
        return self.mine.batch("", complete=True)

    def held(self) -> dict[int, set[int]]:
        """By server, without those that hold nothing."""
        return {server: blocks for server in self.index.servers() if (blocks := set(self.index.states(server)[0]))}


class Convergence(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.small = patch.object(prefix_announcements, "MAX_BLOCKS", PIECE)
        self.small.start()
        self.runs = 0
        self.now = 0.0
        self.restarted = False
        self.pickers = {id: self.started(id) for id in PICKERS}
        for picker in self.pickers.values():
            picker.peers.complete()
        self.standing: Counter[tuple[str, int]] = Counter()
        self.network: list[tuple[str, PrefixBatch]] = []
        """Batches on their way, and to whom."""
        self.sent: dict[tuple[str, int], list[PrefixBatch]] = {}
        self.restores: list[tuple[Picker, Restore, Iterator[PrefixPiece]]] = []

    def started(self, id: str) -> Picker:
        self.runs += 1
        return Picker(id, self.runs)

    def send(self, who: str, batches: list[PrefixBatch]) -> None:
        for batch in batches:
            self.sent.setdefault((who, batch.run), []).append(batch)
            self.network += [(other, batch) for other in PICKERS if other != who]

    def deliver(self, at: int) -> None:
        to, batch = self.network.pop(at)
        self.pickers[to].peers.receive(batch, self.now)

    @rule(who=WHO, name=st.sampled_from(ENDPOINTS), prompt=PROMPTS)
    def prompt_is_placed(self, who: str, name: str, prompt: tuple[int, ...]) -> None:
        self.pickers[who].index.add(name, hashes(prompt), ROOM)
        self.pickers[who].placed.append((name, prompt))
        self.standing.update((name, block) for block in hashes(prompt))

    @rule(who=WHO, at=st.integers(0, 50))
    def request_fails(self, who: str, at: int) -> None:
        placed = self.pickers[who].placed
        if placed:
            name, prompt = placed.pop(at % len(placed))
            self.pickers[who].index.forget(name, hashes(prompt))
            self.standing.subtract((name, block) for block in hashes(prompt))

    @rule(who=WHO)
    def batches_are_sent(self, who: str) -> None:
        self.send(who, self.pickers[who].announce())

    @rule(at=st.integers(0, 50))
    def batch_arrives(self, at: int) -> None:
        if self.network:
            self.deliver(at % len(self.network))

    @rule(at=st.integers(0, 50), again=st.booleans())
    def batch_is_lost_or_repeated(self, at: int, again: bool) -> None:
        if self.network:
            batch = self.network.pop(at % len(self.network))
            self.network += [batch, batch] * again

    @rule(who=WHO, to=WHO)
    def heartbeat_arrives(self, who: str, to: str) -> None:
        if who != to:
            self.pickers[to].peers.receive(self.pickers[who].heartbeat(), self.now)

    @rule(who=WHO, repeats=st.booleans())
    def missing_batches_are_asked_for(self, who: str, repeats: bool) -> None:
        self.now += OVERTAKEN + AGAIN
        for origin in self.pickers[who].peers.missing(self.now):
            self.ask(self.pickers[who], origin, repeats=repeats)

    def ask(self, picker: Picker, origin: Origin, *, repeats: bool) -> None:
        """What the origin answers: its batches once more, or a dump, which takes a while."""
        asked = self.pickers[origin.id]
        if asked.mine.run != origin.run:
            picker.peers.drop_origin(origin)
        elif repeats:
            for batch in self.sent.get((origin.id, origin.run), [])[origin.applied :]:
                picker.peers.receive(batch, self.now)
            picker.peers.answered(origin, asked.mine.sequence)
        else:
            origins, _ = asked.peers.table(origin.id, asked.mine.run, asked.mine.sequence)
            pieces = dump(asked.index, asked.mine, origins[:1], 1, 1)
            restore = Restore(picker.peers, picker.index, picker.mine.id, self.now, origin)
            self.restores.append((picker, restore, pieces))

    @rule(at=st.integers(0, 5))
    def piece_of_a_dump_arrives(self, at: int) -> None:
        if self.restores:
            picker, restore, pieces = self.restores[at % len(self.restores)]
            piece = next(pieces)
            restore.take(piece)
            if not piece.more:
                restore.finish(piece.sequence)
                self.restores.remove((picker, restore, pieces))

    @rule(who=WHO, other=WHO)
    def picker_restarts(self, who: str, other: str) -> None:
        """Its last batches arrive, because nobody could know of them otherwise. What is on its way to it is lost."""
        if who == other or self.pickers[other].peers.joining:
            return
        self.restarted = True
        self.send(who, self.pickers[who].announce())
        self.settle_restores()
        for picker in self.pickers.values():
            for batch in self.sent.get((who, self.pickers[who].mine.run), []):
                if picker is not self.pickers[who]:
                    picker.peers.receive(batch, self.now)
        self.network = [(to, batch) for to, batch in self.network if to != who]
        picker = self.pickers[who] = self.started(who)
        asked = self.pickers[other]
        origins, known = asked.peers.table(other, asked.mine.run, asked.mine.sequence)
        pieces = dump(asked.index, asked.mine, origins, known, 1)
        self.restores.append((picker, Restore(picker.peers, picker.index, who, self.now, None), pieces))

    @rule()
    def index_is_swept(self) -> None:
        for picker in self.pickers.values():
            picker.index.sweep()

    def settle_restores(self) -> None:
        while self.restores:
            self.piece_of_a_dump_arrives(0)

    def teardown(self) -> None:
        try:
            for round in range(12):
                self.settle_restores()
                for who in PICKERS:
                    self.batches_are_sent(who)
                while self.network:
                    self.deliver(0)
                for who in PICKERS:
                    for other in PICKERS:
                        self.heartbeat_arrives(who, other)
                    self.missing_batches_are_asked_for(who, round % 2 == 0)
                for picker in self.pickers.values():
                    for _ in range(5):
                        picker.index.sweep()
            assert not self.network
            first, *others = [picker.held() for picker in self.pickers.values()]
            assert all(other == first for other in others), (first, others)
            if not self.restarted:
                expected: dict[int, set[int]] = {}
                for (name, block), count in self.standing.items():
                    if count:
                        server = server_of(name)
                        expected.setdefault(server, set()).add(block)
                assert first == expected
        finally:
            self.small.stop()


def server_of(name: str) -> int:
    return server_hash(LAYOUT.endpoints[LAYOUT.index[name]])


TestConvergence = Convergence.TestCase
TestConvergence.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)
