"""What counts as failed, and the one thing that doesn't."""

from pointsman.demo.responses import PromptDetails, Usage
from pointsman.demo.tally import OTHER, Tally

USAGE = Usage(prompt_tokens=100, completion_tokens=5, prompt_tokens_details=PromptDetails(cached_tokens=75))


def test_a_request_is_open_until_it_has_an_outcome() -> None:
    tally = Tally()
    tally.sent = 3
    assert tally.open == 3
    tally.add_success("model-1", USAGE, 0.1, 0.5, now=1.0)
    tally.add_failure("status 500")
    assert tally.open == 1
    assert (tally.succeeded, tally.failed) == (1, 1)
    assert tally.served == {"model-1": 1}


def test_an_answer_that_a_killed_server_had_begun_is_cut_off_not_failed() -> None:
    tally = Tally()
    assert not tally.killed_since(9.0)
    kill = tally.add_kill("model-1", now=10.0)
    assert (tally.killed_since(9.0), tally.killed_since(10.5)) == (True, False)
    assert tally.count_interrupted("model-1", started=9.0)
    assert tally.count_interrupted("model-1", started=9.0, unseen=True)
    for server, started in (("model-2", 9.0), ("", 9.0), ("model-1", 10.5)):
        assert not tally.count_interrupted(server, started=started), (
            "another server's answer, or one begun after the kill"
        )
        assert not tally.count_interrupted(server, started=started, unseen=True)
    later = tally.add_kill("model-1", now=60.0)
    tally.count_interrupted("model-1", started=59.0)
    assert (kill.interrupted, kill.unseen, later.interrupted) == (2, 1, 1)
    assert (tally.interrupted, tally.unseen, tally.failed) == (3, 1, 0)


def test_a_request_whose_prefill_server_is_gone_is_sent_again() -> None:
    tally = Tally()
    tally.add_kill("decode-1", now=5.0)
    assert not tally.count_unprefilled(5.0)
    kill = tally.add_kill("prefill-1", now=10.0, prefills=True)
    assert tally.count_unprefilled(9.0)
    assert tally.count_unprefilled(12.0), "the pickers don't know yet"
    kill.back = 20.0
    assert (tally.count_unprefilled(19.0), tally.count_unprefilled(21.0)) == (True, False)
    assert (kill.interrupted, tally.interrupted, tally.failed) == (3, 3, 0)


def test_kills_and_reasons_are_bounded() -> None:
    tally = Tally()
    for number in range(1000):
        tally.add_kill("model-1", now=number)
        tally.add_failure(f"reason {number}")
    assert len(tally.kills) == 50
    assert tally.reasons.total() == tally.failed == 1000
    assert tally.reasons[OTHER] == 980


def test_the_share_of_cached_prompt_tokens() -> None:
    tally = Tally()
    assert tally.cached_share() is None
    tally.add_success("a", USAGE, None, 0.5, now=0.0)
    tally.add_success("a", Usage(prompt_tokens=100), None, 0.5, now=20.0)
    assert tally.cached_share() == 0.375
    assert tally.figures(now=20.0, elapsed=20.0).cached == 0.0


def test_only_streamed_answers_have_a_first_token_and_the_rate_of_the_first_seconds_is_over_those() -> None:
    tally = Tally()
    tally.add_success("a", USAGE, None, 0.5, now=2.0)
    assert tally.first_token.values() == []
    for _ in range(39):
        tally.add_success("a", USAGE, 0.25, 0.5, now=2.0)
    figures = [tally.figures(now=now, elapsed=now) for now in (2.0, 11.0, 20.0)]
    assert [each.rate for each in figures] == [20.0, 4.0, 0.0]
    assert (figures[0].first_token, figures[0].duration) == ((0.25, 0.25), (0.5, 0.5))
    assert (figures[2].first_token, figures[2].succeeded) == ((None, None), 40)
