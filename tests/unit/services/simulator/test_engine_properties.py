"""What holds for the engine whatever is asked of it, in whatever order."""

from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.simulator.engine import Engine
from services.simulator.sequence import EngineRequest, RequestOutput
from tests.unit.services.simulator.scenario import MS, run_out, settings, text, work

ADAPTERS = ("", "", "a", "b", "c")

plans = st.lists(
    st.tuples(
        st.integers(0, 300),  # milliseconds since the one before
        st.integers(1, 40),  # prompt tokens
        st.integers(0, 30),  # output tokens
        st.sampled_from("xyz"),  # which of three prompts it begins like
        st.sampled_from(ADAPTERS),
        st.booleans(),
    ),
    max_size=12,
)


def tight() -> Engine:
    return Engine(settings(kv_blocks=20, slots=3, adapters=("a", "b", "c"), max_adapters=2, prefill_chunk=16), 0)


class Anything(RuleBasedStateMachine):
    """Submits, cancels and passes time in any order, on a server that is short of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = tight()
        self.now = 0
        self.submitted: dict[str, EngineRequest] = {}
        self.cancelled: set[str] = set()
        self.finished: dict[str, RequestOutput] = {}

    @rule(
        prompt=st.integers(1, 40),
        output=st.integers(0, 30),
        word=st.sampled_from("xyz"),
        adapter=st.sampled_from(ADAPTERS),
        stream=st.booleans(),
    )
    def submit(self, prompt: int, output: int, word: str, adapter: str, stream: bool) -> None:
        id = f"request {len(self.submitted)}"
        each = work(id, text(prompt, f"{word}   "), output, adapter=adapter, stream=stream)
        self.engine.submit(each, self.now)
        self.submitted[id] = each

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.submitted)))
        self.collect(self.engine.advance(self.now))
        assert self.engine.cancel(id, self.now) == (id not in self.finished and id not in self.cancelled)
        if id not in self.finished:
            self.cancelled.add(id)

    @rule(passed=st.integers(0, 400 * MS))
    def pass_time(self, passed: int) -> None:
        self.now += passed
        self.collect(self.engine.advance(self.now))

    @rule()
    def next_event(self) -> None:
        at = self.engine.next_event()
        if at is not None:
            assert at >= self.now
            self.now = at
            self.collect(self.engine.advance(at))

    @rule(factor=st.sampled_from((0.5, 1.0, 3.0)))
    def slow_down(self, factor: float) -> None:
        self.engine.slow_down(factor, self.now)

    def collect(self, reported: list[RequestOutput]) -> None:
        for progress in reported:
            assert progress.id not in self.finished, "nothing comes after the end"
            assert progress.id not in self.cancelled, "nothing comes for a request that was cancelled"
            if progress.finished:
                self.finished[progress.id] = progress

    @invariant()
    def nothing_is_taken_twice_or_negative(self) -> None:
        cache, state = self.engine.cache, self.engine.state()
        assert 0 <= cache.used <= cache.used + cache.cached <= cache.total
        assert 0 <= state.running <= 3
        assert len(self.engine.adapters.loaded) <= 2

    def teardown(self) -> None:
        self.collect(run_out(self.engine))
        state = self.engine.state()
        assert (state.running, state.waiting, state.kv_used) == (0, 0, 0)
        assert set(self.finished) == set(self.submitted) - self.cancelled, "every request ends"
        for id, progress in self.finished.items():
            assert progress.tokens == self.submitted[id].output_tokens


Anything.TestCase.settings = hypothesis_settings(max_examples=40, stateful_step_count=30, deadline=None)
TestAnything = Anything.TestCase


def play(
    plan: list[tuple[int, int, int, str, str, bool]], ticks: list[int]
) -> tuple[dict[str, int], dict[str, object]]:
    """Submit by plan, asking the engine at the plan's times and at `ticks`; when requests end, and the counts."""
    engine = tight()
    arrivals: list[tuple[int, EngineRequest]] = []
    at = 0
    for index, (gap, prompt, output, word, adapter, stream) in enumerate(plan):
        at += gap * MS
        arrivals.append((at, work(f"{index}", text(prompt, f"{word}   "), output, adapter=adapter, stream=stream)))
    reported: list[RequestOutput] = []
    steps: list[tuple[int, EngineRequest | None]] = [*arrivals, *((tick, None) for tick in ticks)]
    for when, each_step in sorted(steps, key=lambda step: step[0]):
        reported += engine.advance(when)
        if each_step is not None:
            engine.submit(each_step, when)
    reported += run_out(engine)
    counters = engine.counters
    counts = {
        "generated": counters.generation_tokens,
        "steps": counters.steps,
        "preemptions": counters.preemptions,
        "evictions": engine.cache.evictions,
        "hits": counters.prefix_hits,
        "first token": counters.first_token.counts,
        "inter token": counters.inter_token.counts,
        "step tokens": counters.step_tokens.counts,
    }
    return {each_step.id: each_step.at for each_step in reported if each_step.finished}, counts


DEFAULT_SHARING = [
    (0, 5, 18, "x", "a", False),
    (257, 1, 13, "x", "a", False),
    (211, 32, 18, "z", "", False),
    (17, 3, 5, "x", "b", False),
    (0, 1, 5, "x", "b", False),
]
"""The last two come to share blocks while they decode, where each new block evicts one."""


@given(plan=plans, ticks=st.lists(st.integers(0, 3000 * MS), max_size=60))
@example(plan=DEFAULT_SHARING, ticks=[1244 * MS])
@hypothesis_settings(max_examples=80, deadline=None)
def test_it_does_not_matter_how_often_the_engine_is_asked(
    plan: list[tuple[int, int, int, str, str, bool]], ticks: list[int]
) -> None:
    """Steps that are taken many at once end at the same times, and count the same, as one by one."""
    assert play(plan, ticks) == play(plan, [])
