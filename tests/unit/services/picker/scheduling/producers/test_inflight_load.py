from typing import Any

import numpy as np
import pytest

from services.picker.scheduling.cycle import PREFIX_MATCH, PrefixMatch
from services.picker.scheduling.producers.inflight_load import InFlightLoadParameters, InFlightLoadProducer
from tests.unit.services.picker.world import cycle, pool, request


def tokens(prompt_tokens: int, output_limit: int | None = None, **parameters: object) -> int:
    view = pool("a1")
    run = cycle(view, request(b"xxxx" * prompt_tokens, output_limit=output_limit))
    return InFlightLoadProducer("load", InFlightLoadParameters(**parameters)).tokens(run, 0)  # type: ignore[arg-type]


def test_a_request_weighs_its_prompt() -> None:
    assert tokens(100) == 100
    assert tokens(100, output_limit=5) == 100


def test_what_the_endpoint_has_cached_weighs_nothing() -> None:
    view = pool("a1", "a2")
    run = cycle(view, request(b"xxxx" * 200))
    run.put(PREFIX_MATCH, PrefixMatch(np.array([2.0, 4.0]), 4, 64))
    made = InFlightLoadProducer("load")
    assert [made.tokens(run, row) for row in (0, 1)] == [200 - 128, 0]


@pytest.mark.parametrize(
    ("limit", "parameters", "expected"),
    [
        (None, {}, 100 + 150),  # a 400-byte body
        (None, {"output_ratio": 0.5}, 100 + 50),
        (40, {}, 100 + 40),
        (1000, {}, 100 + 150),
        (0, {}, 100),
        (None, {"max_estimated_output_tokens": 30}, 100 + 30),
        (40, {"max_estimated_output_tokens": 30}, 100 + 30),
        (20, {"max_estimated_output_tokens": 30}, 100 + 20),
    ],
)
def test_the_output_can_be_estimated_and_added(limit: int | None, parameters: dict[str, object], expected: int) -> None:
    assert tokens(100, limit, add_estimated_output_tokens=True, **parameters) == expected


def test_every_sequence_that_is_generated_at_once_has_its_own_output() -> None:
    producer = InFlightLoadProducer("load", InFlightLoadParameters(add_estimated_output_tokens=True))
    run = cycle(pool("a1"), request(b"xxxx" * 100, output_limit=40, parallel=3))
    assert producer.tokens(run, 0) == 100 + 3 * 40


@pytest.mark.parametrize(
    ("content", "parameters"),
    [
        ({"parallel": 2**31 - 1}, {"add_estimated_output_tokens": True}),
        ({}, {"add_estimated_output_tokens": True, "output_ratio": 1e308}),
        ({"parallel": 2**31 - 1}, {"add_estimated_output_tokens": True, "output_ratio": 1e308}),
        ({"prompt_tokens": 2**22}, {}),
        ({"prompt_tokens": 600_000}, {"add_estimated_output_tokens": True}),
    ],
)
def test_a_request_weighs_no_more_than_the_longest_context(content: dict[str, Any], parameters: dict[str, Any]) -> None:
    run = cycle(pool("a1"), request(b"xxxx" * 100, **content))
    assert InFlightLoadProducer("load", InFlightLoadParameters(**parameters)).tokens(run, 0) == 1_000_000


def test_with_an_estimate_of_the_output_the_tokens_count_until_the_end() -> None:
    assert InFlightLoadProducer("load", InFlightLoadParameters(add_estimated_output_tokens=True)).until_end
    assert not InFlightLoadProducer("load").until_end
