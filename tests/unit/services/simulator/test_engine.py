"""The timing model, by its formulas. Times are in milliseconds: 1 a prompt token, 10 an output token."""

import pytest

from services.simulator.counters import FinishReason
from services.simulator.engine import ContextTooLong, Engine, Overloaded
from services.simulator.tokens import block_hashes
from tests.unit.services.simulator.scenario import MS, ends, run_out, settings, text, work


def test_first_token_comes_after_the_prompt_has_been_read() -> None:
    engine = Engine(settings(), 0)
    engine.submit(work("one", text(50), 3, stream=True), 0)
    assert [(one.tokens, one.at / MS) for one in run_out(engine)] == [(1, 50), (2, 60), (3, 70)]


def test_a_request_that_is_not_streamed_reports_its_end_alone() -> None:
    engine = Engine(settings(), 0)
    engine.submit(work("one", text(50), 3), 0)
    assert engine.next_event() == 50 * MS
    reported = run_out(engine)
    assert [(one.tokens, one.at / MS, one.finished) for one in reported] == [(3, 70, True)]


def test_nothing_happens_between_two_ends_when_nobody_streams() -> None:
    """One event for a thousand tokens: what makes the simulator cheap."""
    engine = Engine(settings(kv_blocks=1000), 0)
    engine.submit(work("one", text(10), 1000), 0)
    engine.advance(10 * MS)
    assert engine.next_event() == (10 + 999 * 10) * MS


def test_stream_interval_joins_tokens_into_fewer_events() -> None:
    engine = Engine(settings(stream_interval=4), 0)
    engine.submit(work("one", text(10), 10, stream=True), 0)
    assert [one.tokens for one in run_out(engine)] == [1, 4, 8, 10]


def test_prefix_hits_shorten_the_prefill() -> None:
    """Of 50 tokens 12 blocks of 4 are in the cache; 2 tokens are left to read."""
    engine = Engine(settings(), 0)
    engine.submit(work("cold", text(50), 1), 0)
    assert ends(run_out(engine)) == {"cold": 50 * MS}
    engine.submit(work("warm", text(50), 1), 1000 * MS)
    reported = run_out(engine)
    assert ends(reported) == {"warm": 1002 * MS}
    assert reported[-1].cached_tokens == 48


def test_the_last_token_of_a_prompt_is_read_even_when_all_is_cached() -> None:
    engine = Engine(settings(), 0)
    engine.submit(work("cold", text(48), 1), 0)
    run_out(engine)
    engine.submit(work("warm", text(48), 1), 1000 * MS)
    reported = run_out(engine)
    assert reported[-1].cached_tokens == 44
    assert ends(reported) == {"warm": 1004 * MS}


def test_an_answer_is_found_again_when_the_next_turn_repeats_it() -> None:
    engine = Engine(settings(), 0)
    first = work("one", text(40), 20)
    engine.submit(first, 0)
    run_out(engine)
    turn = type(first.prompt)(first.prompt.data + first.output + b"more words")
    engine.submit(work("two", turn, 1), 1000 * MS)
    assert run_out(engine)[-1].cached_tokens == 56, "the last token of the answer was never fed back: 59 are computed"


def test_without_prefix_caching_nothing_is_found() -> None:
    engine = Engine(settings(prefix_caching=False), 0)
    for start in (0, 1000):
        engine.submit(work(f"at {start}", text(50), 1), start * MS)
        assert run_out(engine)[-1].cached_tokens == 0
    assert engine.cache.cached == 0


def test_adapters_do_not_share_blocks() -> None:
    engine = Engine(settings(adapters=("a",), adapter_load_time=0), 0)
    engine.submit(work("base", text(50), 1), 0)
    run_out(engine)
    engine.submit(work("tuned", text(50), 1, adapter="a"), 1000 * MS)
    assert run_out(engine)[-1].cached_tokens == 0


def test_a_token_takes_longer_the_more_requests_decode() -> None:
    """Four requests of one prompt token each, read in one step; then 10 · (1 + 0.1 · 3) = 13 ms a token."""
    engine = Engine(settings(), 0)
    engine.submit(work("first", text(1), 1), 0)
    for name in "abcd":
        engine.submit(work(name, text(1, f"{name}   "), 11), 0)
    assert ends(run_out(engine)) == {"first": 1 * MS} | dict.fromkeys("abcd", (1 + 4 + 10 * 13) * MS)


def test_reading_a_prompt_slows_those_down_that_decode() -> None:
    """A step with 30 prompt tokens and one decoding request takes 10 + 30 ms."""
    engine = Engine(settings(), 0)
    engine.submit(work("talker", text(1), 10, stream=True), 0)
    engine.advance(5 * MS)
    engine.submit(work("reader", text(30, "r   "), 1), 5 * MS)
    times = [one.at / MS for one in run_out(engine) if one.id == "talker"]
    assert times[:4] == [11, 51, 61, 71]


def test_long_prompts_are_read_in_chunks() -> None:
    """250 tokens in chunks of 100 next to a decoding request: three steps, each with a token for the other."""
    engine = Engine(settings(), 0)
    engine.submit(work("talker", text(1), 20, stream=True), 0)
    engine.advance(1 * MS)
    engine.submit(work("reader", text(250, "r   "), 1), 1 * MS)
    reported = run_out(engine)
    assert [one.at / MS for one in reported if one.id == "talker"][:5] == [11, 121, 231, 291, 301]
    assert ends(reported)["reader"] == 291 * MS


def test_chunks_go_to_prompts_in_the_order_of_arrival() -> None:
    engine = Engine(settings(), 0)
    engine.submit(work("zero", text(1), 1), 0)
    engine.submit(work("one", text(150, "a   "), 1), 0)
    engine.submit(work("two", text(150, "b   "), 1), 0)
    assert ends(run_out(engine)) == {"zero": 1 * MS, "one": 201 * MS, "two": 301 * MS}


def test_requests_beyond_the_slots_wait_in_order() -> None:
    engine = Engine(settings(slots=1), 0)
    for name in "abc":
        engine.submit(work(name, text(10, f"{name}   "), 2), 0)
    assert (engine.state().running, engine.state().waiting) == (1, 2)
    assert ends(run_out(engine)) == {"a": 20 * MS, "b": 40 * MS, "c": 60 * MS}
    assert engine.counters.queue.sum == pytest.approx(0.02 + 0.04)


def test_speed_divides_every_time() -> None:
    engine = Engine(settings(speed=10), 0)
    engine.submit(work("one", text(50), 3), 0)
    assert ends(run_out(engine)) == {"one": 7 * MS}


def test_slowing_down_holds_from_the_next_step_on() -> None:
    engine = Engine(settings(), 0)
    engine.submit(work("one", text(10), 4), 0)
    engine.slow_down(2, 15 * MS)
    assert ends(run_out(engine)) == {"one": (10 + 10 + 20 + 20) * MS}


def test_an_embedding_is_done_when_its_prompt_is_read() -> None:
    engine = Engine(settings(), 0)
    engine.submit(work("one", text(20), 0), 0)
    reported = run_out(engine)
    assert ends(reported) == {"one": 20 * MS}
    assert reported[-1].tokens == 0
    assert engine.counters.first_token.count == 0


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


def test_a_request_without_room_for_its_prompt_waits_and_holds_up_those_behind_it() -> None:
    engine = Engine(settings(kv_blocks=10), 0)
    engine.submit(work("large", text(28), 3), 0)
    engine.submit(work("also", text(20, "b   "), 1), 0)
    engine.submit(work("small", text(4, "c   "), 1), 0)
    engine.advance(30 * MS)
    assert (engine.state().running, engine.state().waiting) == (1, 2)
    assert engine.state().deferred == 0
    at = ends(run_out(engine))
    assert at["large"] == 48 * MS
    assert at["also"] == at["small"] == (48 + 24) * MS


def test_when_blocks_run_out_the_youngest_request_starts_over() -> None:
    """Two requests of 16 prompt tokens fill eight blocks of nine. The second to need a ninth block is put back to the
    queue, and finds its blocks again when the first one is done."""
    engine = Engine(settings(kv_blocks=9), 0)
    engine.submit(work("old", text(16), 12), 0)
    engine.submit(work("young", text(16, "y   "), 12), 0)
    reported = run_out(engine)
    assert engine.counters.preemptions == 1
    assert ends(reported)["old"] < ends(reported)["young"]
    assert [one.tokens for one in reported if one.finished] == [12, 12]
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


def test_an_adapter_has_to_be_loaded_first() -> None:
    engine = Engine(settings(adapters=("a",)), 0)
    engine.submit(work("one", text(10), 1, adapter="a"), 0)
    state = engine.state()
    assert (state.waiting, state.deferred, state.waiting_adapters) == (1, 1, ("a",))
    engine.advance(500 * MS)
    assert engine.state().running_adapters == ("a",)
    assert ends(run_out(engine)) == {"one": 510 * MS}
    assert engine.state().loaded_adapters == ("a",)
    engine.submit(work("two", text(10, "b   "), 1, adapter="a"), 1000 * MS)
    assert ends(run_out(engine)) == {"two": 1010 * MS}


def test_others_pass_a_request_that_waits_for_its_adapter() -> None:
    engine = Engine(settings(adapters=("a",)), 0)
    engine.submit(work("tuned", text(10), 1, adapter="a"), 0)
    engine.submit(work("base", text(10, "b   "), 1), 0)
    assert ends(run_out(engine)) == {"base": 10 * MS, "tuned": 510 * MS}


def test_an_adapter_waits_until_a_place_is_free() -> None:
    """One place, held by a running request until 90 ms; then the idle adapter makes room."""
    engine = Engine(settings(adapters=("a", "b"), max_adapters=1, adapter_load_time=0.02), 0)
    engine.submit(work("one", text(10), 7, adapter="a"), 0)
    engine.submit(work("two", text(10), 1, adapter="b"), 0)
    assert ends(run_out(engine)) == {"one": 90 * MS, "two": (90 + 20 + 10) * MS}
    assert engine.adapters.evictions == 1
    assert engine.state().loaded_adapters == ("b",)


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


def test_a_waiting_request_can_be_cancelled() -> None:
    engine = Engine(settings(slots=1), 0)
    engine.submit(work("one", text(10), 2), 0)
    engine.submit(work("two", text(10), 2), 0)
    assert engine.cancel("two", 0)
    assert ends(run_out(engine)) == {"one": 20 * MS}


def test_work_beyond_the_context_is_refused() -> None:
    engine = Engine(settings(kv_blocks=10), 0)
    with pytest.raises(ContextTooLong, match="38 prompt tokens and 3 output tokens are more than the context of 40"):
        engine.submit(work("one", text(38), 3), 0)
    assert engine.next_event() is None


def test_more_requests_than_allowed_are_refused() -> None:
    engine = Engine(settings(slots=1, max_requests=2), 0)
    engine.submit(work("one", text(1), 1), 0)
    engine.submit(work("two", text(1), 1), 0)
    with pytest.raises(Overloaded, match="2 requests are waiting or running and 1 more would exceed the limit of 2"):
        engine.submit(work("three", text(1), 1), 0)
    assert engine.counters.rejections == 1


def test_an_id_that_is_in_use_is_refused() -> None:
    engine = Engine(settings(), 0)
    engine.submit(work("one", text(1), 1), 0)
    with pytest.raises(ValueError, match="'one' is here already"):
        engine.submit(work("one", text(1), 1), 0)


def test_time_does_not_run_backwards() -> None:
    engine = Engine(settings(), 100)
    with pytest.raises(ValueError, match="99 after 100"):
        engine.advance(99)


def test_counters_add_up() -> None:
    engine = Engine(settings(), 0)
    engine.submit(work("one", text(50), 5, max_tokens=5), 0)
    run_out(engine)
    engine.submit(work("two", text(50), 5, max_tokens=9), 1000 * MS)
    run_out(engine)
    counters = engine.counters
    assert (counters.prompt_tokens, counters.cached_tokens, counters.generation_tokens) == (100, 48, 10)
    assert (counters.prefix_queries, counters.prefix_hits) == (100, 48)
    assert counters.first_token.sum == pytest.approx(0.050 + 0.002)
    assert counters.inter_token.count == 8
    assert counters.per_token.sum == pytest.approx(2 * 0.01)
    assert counters.end_to_end.sum == pytest.approx(0.090 + 0.042)
    assert counters.decode.sum == pytest.approx(0.080)
    assert counters.prefill_computed.sum == 50 + 2
    assert counters.params_max_tokens.sum == 14


def test_repr_tells_the_state() -> None:
    engine = Engine(settings(slots=1), 0)
    engine.submit(work("one", text(10), 1), 0)
    engine.submit(work("two", text(10), 1), 0)
    assert repr(engine) == "<Engine 1 running, 1 waiting, <KvCache 3 used, 0 cached, 997 free of 1000>>"
