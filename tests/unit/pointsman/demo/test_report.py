"""The summary says what happened, and its last line whether it was good."""

from pathlib import Path

import pytest

from pointsman.demo.journal import Entry, Journal
from pointsman.demo.plan import stack_plan
from pointsman.demo.report import is_good, summary, try_it
from pointsman.demo.responses import PromptDetails, Usage
from pointsman.demo.tally import Tally
from pointsman.local.stack import LocalStack

DECISIONS = {"picker-1": {"0.001": 9.0, "0.002": 10.0, "+Inf": 10.0}, "picker-2": {}}
RETRIES = {"servers": 1, "pickers": 2}


def journal() -> Journal:
    return Journal(lambda: 0.0, lambda entry: None)


def good() -> Tally:
    tally = Tally()
    usage = Usage(prompt_tokens=100, completion_tokens=5, prompt_tokens_details=PromptDetails(cached_tokens=75))
    for server in ("model-1", "model-1", "model-1", "model-2"):
        tally.sent += 1
        tally.add_success(server, usage, 0.1, 0.5, now=1.0)
    return tally


def lines(tally: Tally, journal_: Journal) -> list[str]:
    return summary(20.4, tally, RETRIES, DECISIONS, journal_)


def test_the_summary_of_a_good_run() -> None:
    tally, journal_ = good(), journal()
    journal_.step("picker-1 restarted", "…")
    journal_.step("model-1 killed", "…")
    journal_.step("model-1 killed", "…")
    tally.add_kill("model-1", now=0.5)
    tally.count_interrupted("model-1", started=0.4)
    assert lines(tally, journal_) == [
        "Summary of 20 s",
        "  requests      4 sent, 4 succeeded, 0 failed",
        "  first token   p50 100 ms, p99 100 ms; whole responses p50 500 ms, p99 500 ms",
        "  prefix cache  hit for 75% of all prompt tokens",
        "  Envoy         retried 1 request at another server, 2 picks at another picker",
        "  events        picker-1 restarted, model-1 killed 2 times",
        "  kills         interrupted 1 response; the client sent those requests again",
        "  picker-1      10 decisions, p50 556 µs, p99 1.9 ms",
        "  picker-2      0 decisions, p50 –, p99 –",
        "  responses by  model-1 75%, model-2 25%",
        "No request failed.",
    ]
    assert is_good(tally, journal_)
    assert max(len(line) for line in lines(tally, journal_)) <= 80


def test_the_summary_of_a_comparison_has_both_loads() -> None:
    other = good()
    other.add_failure("status 500")
    expected_line = summary(20.4, good(), RETRIES, DECISIONS, journal(), other)
    at = expected_line.index("  round robin   4 succeeded, 1 failed")
    assert expected_line[at + 1 : at + 3] == [
        "                first token p50 100 ms, p99 100 ms; whole p50 500 ms, p99 500 ms",
        "                prefix cache hit for 75% of all prompt tokens",
    ]
    assert expected_line[-1] == "No request failed."


def test_what_broke_off_before_the_client_saw_it_is_shown_apart() -> None:
    tally = good()
    tally.add_kill("model-1", now=0.5)
    tally.count_interrupted("model-1", started=0.4)
    tally.count_interrupted("model-1", started=0.4, unseen=True)
    expected_line = lines(tally, journal())
    at = expected_line.index("  kills         interrupted 2 responses; the client sent those requests again")
    assert expected_line[at + 1] == "                1 of them before Envoy had passed on the response headers"


@pytest.mark.parametrize(
    ("failed", "dropped", "wrong", "expected_line", "end"),
    [
        (2, 0, "", "  failed        2 × status 500 from model-1: oops", "2 requests FAILED."),
        (
            0,
            1,
            "",
            "  requests      5 sent, 4 succeeded, 0 failed, 1 dropped without an outcome",
            "1 request FAILED.",
        ),
        (0, 0, "Oh.", "  problem       Oh.", "No request failed, but there were problems."),
    ],
    ids=["failed", "dropped", "a problem"],
)
def test_what_spoils_a_run_is_named(failed: int, dropped: int, wrong: str, expected_line: str, end: str) -> None:
    tally, journal_ = good(), journal()
    tally.sent += failed + dropped
    for _ in range(failed):
        tally.add_failure("status 500 from model-1: oops")
    if wrong:
        journal_.problem(wrong)
    assert expected_line in lines(tally, journal_)
    assert lines(tally, journal_)[-1] == end
    assert not is_good(tally, journal_)


def test_a_run_without_requests_says_so() -> None:
    assert lines(Tally(), journal())[-1] == "No request was sent."


def test_the_journal_tells_at_once_and_counts_from_its_begin() -> None:
    times = iter([100.0, 101.0, 102.5, 103.0])
    expected_line: list[Entry] = []
    journal_ = Journal(lambda: next(times), expected_line.append)
    journal_.step("model-1 killed", "SIGKILL")
    journal_.seen("It goes on.")
    journal_.failure("A request failed: status 500")
    assert expected_line == [
        Entry(1.0, "step", "SIGKILL"),
        Entry(2.5, "seen", "It goes on."),
        Entry(3.0, "bad", "A request failed: status 500"),
    ]
    assert journal_.problems == []
    assert journal_.events == {"model-1 killed": 1}


def test_the_commands_to_try_fit_a_terminal(tmp_path: Path) -> None:
    stack = LocalStack(stack_plan(0, token="secret", tracing=True), tmp_path)
    try:
        commands = try_it(stack)
        assert f"  curl {stack.url}/v1/chat/completions \\" in commands
        assert f"  curl '{stack.pickers[-1].url}/debug/decisions?limit=3'" in commands
        assert "It asks for a token: secret" in commands
        assert max(len(line) for line in commands) <= 80
        flags = {process.name: " ".join(process.command) for process in stack.processes}
        assert {name for name in flags if "--allow-actions true" in flags[name]} == {"watcher-1", "console-1"}
        assert {name for name in flags if "--tracing true" in flags[name]} == {"picker-1", "picker-2"}
        assert "secret" not in " ".join(flags.values())
    finally:
        stack.close()
