"""Sticky until saturated, on simulated model servers in virtual time: with rising load, requests for a prompt that is
cached at one server stick to it, break out at the documented gap, and stay with both servers afterwards."""

import pytest

from pointsman.lab.workload import Arrival
from services.simulator.settings import SimulatorSettings
from tests.virtual_pool import VirtualPool, poisson

THROUGHPUT, PENALTY = 1_000, 6.0
GAP = THROUGHPUT * PENALTY
"""Tokens by which the servers with the prompt may have more in flight than the others."""
DOCUMENT = f"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: prefix-cache-affinity-filter
  parameters: {{peakPrefillThroughput: {THROUGHPUT}, maxTTFTPenaltyMs: {PENALTY * 1000:g}}}
- type: token-load-scorer
"""
SETTINGS = SimulatorSettings(prefill_time=1 / THROUGHPUT, slots=64, kv_blocks=8192)
SHARED = b"Standing orders of the signal box. " * 460
"""About 4 000 tokens, in whole blocks of 64."""
SHARED = SHARED[: len(SHARED) // 256 * 256]


def prompt(number: int) -> bytes:
    """The shared orders, and a question of 200 tokens that nobody has asked."""
    return SHARED + f"Train {number:06} asks. ".ljust(800, "?").encode()


@pytest.fixture
def pool() -> VirtualPool:
    """Three servers, of which one has the prompt, and nothing in flight."""
    made = VirtualPool(DOCUMENT, SETTINGS, 3)
    made.ask(prompt(0), 1)
    made.run()
    return made


def test_it_sticks_breaks_out_at_the_gap_and_stays_with_both(pool: VirtualPool) -> None:
    home = pool.requests[0].server
    for number in range(1, 6):
        assert pool.ask_now(prompt(number), 1).server == home
        pool.run()
        assert pool.tokens == [0, 0, 0]

    # more requests at a time than the server can take: no time passes, so nothing ends
    asked = 5
    while True:
        asked += 1
        before = pool.tokens[home]
        served = pool.ask_now(prompt(asked), 1)
        if served.server != home:
            break
        assert before <= GAP
    assert before > GAP
    assert before - GAP <= 200, "the request before it was within the gap"
    second = served.server

    # both have it: the one with fewer tokens takes the next, and the third server none
    while max(pool.tokens) <= GAP and asked < 200:
        asked += 1
        fewest = min((home, second), key=lambda server: pool.tokens[server])
        assert pool.ask_now(prompt(asked), 1).server == fewest

    pool.run()
    assert pool.tokens == [0, 0, 0]
    for number in range(asked + 1, asked + 20):
        served = pool.ask_now(prompt(number), 1)
        assert served.server in (home, second)
        pool.run()
        assert served.cached >= 0.9 * len(SHARED) / 4, "it is served from the cache"


def test_every_decision_of_a_load_that_rises_and_falls_keeps_to_the_gap(pool: VirtualPool) -> None:
    numbers = iter(range(1, 10_000))
    arrivals: list[Arrival] = list(poisson(lambda at: 0.5 + 9 * at / 60, 60.0, lambda: prompt(next(numbers)), 4))
    begun, holders = pool.now, {pool.requests[0].server}
    outbreaks = []
    for arrival in arrivals:
        pool.run(until=begun + arrival.at)
        tokens = pool.tokens
        others = [tokens[server] for server in range(3) if server not in holders]
        gap = min(tokens[server] for server in holders) - min(others, default=0.0)
        served = pool.ask_now(arrival.prompt, arrival.output_tokens)
        assert (served.server in holders) or gap > GAP
        if served.server not in holders:
            outbreaks.append(arrival.at)
            holders.add(served.server)
    assert len(outbreaks) == 2
    assert outbreaks[0] > 10, "light load has no need of a second server"
    pool.run()
    assert pool.tokens == [0, 0, 0]
    cached = sum(served.cached for served in pool.requests)
    assert cached > 0.9 * sum(len(served.arrival.prompt) / 4 for served in pool.requests)


def test_the_prompt_moves_only_when_waiting_costs_more_than_computing_it_again() -> None:
    pool = VirtualPool(DOCUMENT.replace("maxTTFTPenaltyMs: 6000", "maxTTFTPenaltyMs: 100"), SETTINGS, 3)
    home = pool.ask_now(prompt(0), 1).server
    pool.run()
    for number in range(1, 100):
        before = pool.tokens[home]
        if pool.ask_now(prompt(number), 1).server != home:
            assert 0 <= before - len(SHARED) / 4 <= 200
            return
    pytest.fail("it never moves")
