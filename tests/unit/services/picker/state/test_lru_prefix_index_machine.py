"""The index against a model that keeps each endpoint's blocks in a list, the youngest last."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.picker.state.layout import Layout
from services.picker.state.lru_prefix_index import LruPrefixIndex
from tests.unit.services.picker.world import endpoint

NAMES = [f"a{number}" for number in range(12)]
PROMPTS = st.lists(st.integers(1, 9), unique=True, max_size=6)


class PrefixMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = LruPrefixIndex()
        self.layout = Layout()
        self.blocks: dict[str, list[int]] = {}
        self.placed: dict[str, Counter[int]] = {}
        """By endpoint: how many placements stand behind each block that it holds."""
        self.swept = True

    @rule(present=st.sets(st.sampled_from(NAMES)), moved=st.sets(st.sampled_from(NAMES)))
    def endpoints_change(self, present: set[str], moved: set[str]) -> None:
        before = {member.id: member.authority for member in self.layout.endpoints}
        self.layout = Layout([endpoint(name, port=9000 if name in moved else 8000) for name in present])
        self.index.relayout(self.layout)
        same = {member.id for member in self.layout.endpoints if before.get(member.id) == member.authority}
        self.swept = self.swept and not (self.blocks.keys() - same)
        self.blocks = {name: held for name, held in self.blocks.items() if name in same}
        self.placed = {name: counts for name, counts in self.placed.items() if name in same}

    @rule(name=st.sampled_from(NAMES), prompt=PROMPTS, capacity=st.integers(1, 8))
    def prompt_is_placed(self, name: str, prompt: list[int], capacity: int) -> None:
        self.index.add(name, prompt, capacity)
        if name in self.layout.index:
            held = [block for block in self.blocks.get(name, []) if block not in prompt] + prompt[::-1]
            self.blocks[name] = held[-capacity:]
            counts = self.placed.get(name, Counter()) + Counter(prompt)
            self.placed[name] = Counter({block: counts[block] for block in self.blocks[name]})

    @rule(name=st.sampled_from(NAMES), prompt=PROMPTS)
    def placement_is_forgotten(self, name: str, prompt: list[int]) -> None:
        self.index.forget(name, prompt)
        if name in self.blocks:
            self.placed[name] -= Counter(prompt)
            self.blocks[name] = [block for block in self.blocks[name] if block in self.placed[name]]

    @rule(budget=st.integers(0, 5))
    def time_passes(self, budget: int) -> None:
        self.index.sweep(budget)

    @rule()
    def all_is_swept(self) -> None:
        self.index.sweep(10_000)
        self.swept = True

    @rule(prompt=PROMPTS)
    def prompt_is_looked_up(self, prompt: list[int]) -> None:
        expected = []
        for member in self.layout.endpoints:
            held = self.blocks.get(member.id, [])
            expected.append(next((at for at, block in enumerate(prompt) if block not in held), len(prompt)))
        assert self.index.match(prompt).tolist() == expected

    @invariant()
    def sizes_agree(self) -> None:
        for name in NAMES:
            assert self.index.blocks_of(name) == len(self.blocks.get(name, []))
        known = {block for held in self.blocks.values() for block in held}
        assert len(self.index) >= len(known)
        if self.swept:
            assert len(self.index) == len(known)


TestPrefixMachine = PrefixMachine.TestCase
TestPrefixMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
