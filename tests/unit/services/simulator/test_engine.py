"""The timing model, by its formulas. Times are in milliseconds: 1 a prompt token, 10 an output token."""

from typing import Any

import pytest

from services.simulator.counters import FinishReason
from services.simulator.engine import ContextTooLong, Engine, Overloaded
from services.simulator.sequence import RequestOutput
from services.simulator.tokens import block_hashes
from tests.unit.services.simulator.scenario import MS, ends, run_out, settings, text, work

ADAPTERS = {"adapters": ("x", "y"), "max_adapters": 1}


@pytest.mark.parametrize(
    ("given", "requests", "expected"),
    [
        pytest.param({}, ["a 50 3"], {"a": 70}, id="a prompt is read first, then a token comes with each step"),
        pytest.param({"speed": 10}, ["a 50 3"], {"a": 7}, id="speed divides every time"),
        pytest.param({}, ["a 20 0"], {"a": 20}, id="an embedding is done when its prompt is read"),
        pytest.param(
            {}, ["a 50 1", "a2 50 1 1000"], {"a": 50, "a2": 1002}, id="12 blocks of 4 are cached, 2 tokens left"
        ),
        pytest.param({}, ["a 48 1", "a2 48 1 1000"], {"a": 48, "a2": 1004}, id="a prompt's last token is always read"),
        pytest.param(
            {"prefix_caching": False}, ["a 50 1", "a2 50 1 1000"], {"a": 50, "a2": 1050}, id="no prefix caching"
        ),
        pytest.param(
            {**ADAPTERS, "adapter_load_time": 0},
            ["a 50 1", "a2 50 1 1000 x"],
            {"a": 50, "a2": 1050},
            id="adapters don't share blocks",
        ),
        pytest.param(
            {},
            ["f 1 1", "a 1 11", "b 1 11", "c 1 11", "d 1 11"],
            {"f": 1} | dict.fromkeys("abcd", 1 + 4 + 10 * 13),
            id="four prompts in one step, then 10 (1 + 0.1 * 3) = 13 ms a token",
        ),
        pytest.param(
            {}, ["z 1 1", "a 150 1", "b 150 1"], {"z": 1, "a": 201, "b": 301}, id="chunks in order of arrival"
        ),
        pytest.param({"slots": 1}, ["a 10 2", "b 10 2", "c 10 2"], {"a": 20, "b": 40, "c": 60}, id="slots in order"),
        pytest.param(
            {"kv_blocks": 10},
            ["l 28 3", "b 20 1", "c 4 1"],
            {"l": 48, "b": 72, "c": 72},
            id="a prompt without room waits, and holds up those behind it",
        ),
        pytest.param(ADAPTERS, ["a 10 1 0 x", "b 10 1 1000 x"], {"a": 510, "b": 1010}, id="an adapter is loaded once"),
        pytest.param(
            ADAPTERS, ["t 10 1 0 x", "b 10 1"], {"b": 10, "t": 510}, id="others pass who waits for an adapter"
        ),
        pytest.param(
            {**ADAPTERS, "adapter_load_time": 0.02},
            ["a 10 7 0 x", "b 10 1 0 y"],
            {"a": 90, "b": 120},
            id="an adapter waits until the running one makes room",
        ),
    ],
)
def test_requests_end_when_the_formulas_say(
    given: dict[str, Any], requests: list[str], expected: dict[str, float]
) -> None:
    """A request is `id, prompt tokens, output tokens, milliseconds, adapter`; ids of one letter share a prompt."""
    engine = Engine(settings(**given), 0)
    reported: list[RequestOutput] = []
    for request in requests:
        id, prompt, output, at, adapter = [*request.split(), *["0", ""][request.count(" ") - 2 :]]
        reported += engine.advance(int(at) * MS)
        engine.submit(work(id, text(int(prompt), f"{id[0]}   "), int(output), adapter=adapter), int(at) * MS)
    assert ends(reported + run_out(engine)) == {id: at * MS for id, at in expected.items()}


def test_nothing_happens_between_two_ends_when_nobody_streams() -> None:
    """One event for a thousand tokens: what makes the simulator cheap."""
    engine = Engine(settings(kv_blocks=1000), 0)
    engine.submit(work("one", text(10), 1000), 0)
    engine.advance(10 * MS)
    assert engine.next_event() == (10 + 999 * 10) * MS


def test_stream_interval_joins_tokens_into_fewer_events() -> None:
    engine = Engine(settings(stream_interval=4), 0)
    engine.submit(work("one", text(10), 10, stream=True), 0)
    assert [each.tokens for each in run_out(engine)] == [1, 4, 8, 10]


def test_an_answer_is_found_again_when_the_next_turn_repeats_it() -> None:
    engine = Engine(settings(), 0)
    first = work("one", text(40), 20)
    engine.submit(first, 0)
    run_out(engine)
    turn = type(first.prompt)(first.prompt.data + first.output + b"more words")
    engine.submit(work("two", turn, 1), 1000 * MS)
    assert run_out(engine)[-1].cached_tokens == 56, "the last token of the answer was never fed back: 59 are computed"


def test_reading_a_prompt_slows_those_down_that_decode() -> None:
    """A step with 30 prompt tokens and one decoding request takes 10 + 30 ms."""
    engine = Engine(settings(), 0)
    engine.submit(work("talker", text(1), 10, stream=True), 0)
    engine.advance(5 * MS)
    engine.submit(work("reader", text(30, "r   "), 1), 5 * MS)
    times = [each.at / MS for each in run_out(engine) if each.id == "talker"]
    assert times[:4] == [11, 51, 61, 71]


def test_long_prompts_are_read_in_chunks() -> None:
    """250 tokens in chunks of 100 next to a decoding request: three steps, each with a token for the other."""
    engine = Engine(settings(), 0)
    engine.submit(work("talker", text(1), 20, stream=True), 0)
    engine.advance(1 * MS)
    engine.submit(work("reader", text(250, "r   "), 1), 1 * MS)
    reported = run_out(engine)
    assert [each.at / MS for each in reported if each.id == "talker"][:5] == [11, 121, 231, 291, 301]
    assert ends(reported)["reader"] == 291 * MS


def test_slowing_down_holds_from_the_next_step_on() -> None:
    engine = Engine(settings(), 0)
    engine.submit(work("one", text(10), 4), 0)
    engine.slow_down(2, 15 * MS)
    assert ends(run_out(engine)) == {"one": (10 + 10 + 20 + 20) * MS}


def test_blocks_are_taken_for_the_prompt_and_grow_with_the_answer() -> None:
    engine = Engine(settings(), 0)
    engine.submit(work("one", text(10), 8), 0)
    assert engine.state().kv_used == 3
    engine.advance(10 * MS)
    assert engine.state().kv_used == 3, "12 tokens fit: the prompt's ten, and the first two of the answer"
    engine.advance(30 * MS)
    assert engine.state().kv_used == 4
    run_out(engine)
    assert engine.state().kv_used == 0
    assert engine.state().kv_cached == 4, "16 tokens in full blocks, of the 17 that were computed"


def test_when_blocks_run_out_the_youngest_request_starts_over() -> None:
    """Two requests of 16 prompt tokens fill eight blocks of nine. The second to need a ninth block is put back to the
    queue, and finds its blocks again when the first one is done."""
    engine = Engine(settings(kv_blocks=9), 0)
    engine.submit(work("old", text(16), 12), 0)
    engine.submit(work("young", text(16, "y   "), 12), 0)
    reported = run_out(engine)
    assert engine.counters.preemptions == 1
    assert ends(reported)["old"] < ends(reported)["young"]
    assert [each.tokens for each in reported if each.finished] == [12, 12]
    assert engine.counters.request_preemptions.sum == 1
    assert engine.counters.prefix_queries == 32, "what is read again isn't asked for again"
    assert engine.cache.used == 0


def test_the_oldest_cached_blocks_are_given_away_first() -> None:
    """Ten blocks: `a` and `b` leave four each; `c` needs four, takes the two free ones and the end of `a`."""
    engine = Engine(settings(kv_blocks=10), 0)
    for start, name in enumerate("abc"):
        engine.submit(work(name, text(16, f"{name}   "), 1), start * 1000 * MS)
        run_out(engine)
    assert engine.cache.evictions == 2
    left = {name: engine.cache.match(block_hashes(text(16, f"{name}   ").data, 4, 0)) for name in "abc"}
    assert left == {"a": 2, "b": 4, "c": 4}


def test_cancelling_frees_slot_and_blocks_at_once() -> None:
    engine = Engine(settings(slots=1), 0)
    engine.submit(work("one", text(40), 100), 0)
    engine.submit(work("two", text(10, "b   "), 1), 0)
    assert engine.cancel("one", 45 * MS)
    assert (engine.state().running, engine.state().kv_used) == (1, 3)
    assert ends(run_out(engine)) == {"two": 55 * MS}
    assert engine.counters.finished == {FinishReason.STOP: 0, FinishReason.LENGTH: 1, FinishReason.ABORT: 1}
    assert not engine.cancel("one", 100 * MS)


def test_cancelling_makes_the_next_token_of_the_others_quicker() -> None:
    engine = Engine(settings(), 0)
    engine.submit(work("zero", text(1), 1), 0)
    for name in "ab":
        engine.submit(work(name, text(1, f"{name}   "), 10), 0)
    engine.advance(3 * MS)
    engine.cancel("b", 5 * MS)
    assert ends(run_out(engine))["a"] == (3 + 11 + 8 * 10) * MS


def test_what_cannot_be_taken_is_refused_with_the_reason() -> None:
    engine = Engine(settings(slots=1, kv_blocks=10, max_requests=2), 100)
    with pytest.raises(ContextTooLong, match="38 prompt tokens and 3 output tokens are more than the context of 40"):
        engine.submit(work("one", text(38), 3), 100)
    with pytest.raises(ValueError, match="99 after 100"):
        engine.advance(99)
    assert engine.next_event() is None
    engine.submit(work("one", text(1), 1), 100)
    with pytest.raises(ValueError, match="'one' already exists"):
        engine.submit(work("one", text(1), 1), 100)
    engine.submit(work("two", text(1), 1), 100)
    with pytest.raises(Overloaded, match="2 requests are waiting or running and 1 more would exceed the limit of 2"):
        engine.submit(work("three", text(1), 1), 100)
    assert engine.counters.rejections == 1
