from collections.abc import Sequence

import numpy as np
import pytest

from services.picker.request import Request
from services.picker.scheduling.cycle import PREFIX_MATCH, PrefixMatch
from services.picker.scheduling.interfaces import Placement
from services.picker.scheduling.producers.approx_prefix import ApproxPrefixParameters, ApproxPrefixProducer
from services.picker.state.layout import Floats
from services.picker.state.view import View
from shared.attributes import CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS
from tests.unit.services.picker.world import cycle, endpoint, facts, pool, report, request


def producer(**parameters: object) -> ApproxPrefixProducer:
    return ApproxPrefixProducer("prefix", ApproxPrefixParameters(**parameters))  # type: ignore[arg-type]


def match(
    made: ApproxPrefixProducer, view: View, asked: Request, model: str = "model", *, place: int = -1
) -> PrefixMatch:
    run = cycle(view, asked, model=model)
    made.produce(run)
    if place >= 0:
        made.picked(run, place)
    found = run.get(PREFIX_MATCH)
    assert found is not None
    return found


def test_a_prompt_is_found_where_it_went() -> None:
    view, made = pool("a1", "a2"), producer()
    asked = request(b"x" * 1000)
    assert match(made, view, asked, place=1).matched.tolist() == [0, 0]
    found = match(made, view, asked)
    assert (found.matched.tolist(), found.total, found.block_tokens) == ([0, 4], 4, 64)
    assert made.state() == {"lookups": 1, "blocks": 4, "hits": 0}


def place(made: ApproxPrefixProducer, view: View, asked: Request, at: int) -> Placement:
    """Where another endpoint is calls that serves the request, which went to the endpoint in row `at`."""
    run = cycle(view, asked)
    made.produce(run)
    placed = made.picked(run, at)
    assert placed is not None
    return placed


def test_the_first_choice_keeps_what_other_requests_have_brought_there() -> None:
    view, made = pool("a1", "a2"), producer()
    place(made, view, request(b"x" * 512), 0)
    served_by = place(made, view, request(b"x" * 512 + b"y" * 512), 0)
    place(made, view, request(b"x" * 512 + b"y" * 256), 0)
    served_by("a2")
    assert match(made, view, request(b"x" * 512 + b"y" * 512)).matched.tolist() == [3, 4]


def test_a_request_that_fails_takes_nothing_from_another_server_under_the_same_id() -> None:
    view, made = pool("a1"), producer()
    failed = place(made, view, request(b"x" * 512), 0)
    view.reset(facts(endpoint("a1", port=9000)))
    place(made, view, request(b"x" * 512), 0)
    failed(None)
    assert match(made, view, request(b"x" * 512)).matched.tolist() == [2]


class Told:
    """An index that another source fills: the second of two endpoints holds the first three blocks of everything."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int]] = []

    def match(self, hashes: Sequence[int]) -> Floats:
        return np.array([0.0, min(3.0, len(hashes))])

    def add(self, endpoint_id: str, hashes: Sequence[int], capacity: int) -> None:
        self.calls.append(("add", endpoint_id, len(hashes)))

    def forget(self, endpoint_id: str, hashes: Sequence[int]) -> None:
        self.calls.append(("forget", endpoint_id, len(hashes)))


def test_any_index_serves_that_matches_adds_and_forgets() -> None:
    view, made, index = pool("a1", "a2"), producer(), Told()
    assert len(view.layout) == 2
    view.prefixes = index  # type: ignore[assignment]
    assert match(made, view, request(b"x" * 1024)).matched.tolist() == [0, 3]
    served_by = place(made, view, request(b"x" * 1024), 1)
    served_by("a1")
    assert index.calls == [("add", "a2", 4), ("forget", "a2", 4), ("add", "a1", 4)]


def test_an_endpoint_that_has_gone_gets_no_blocks_and_the_first_choice_keeps_none() -> None:
    view, made = pool("a1", "a2"), producer()
    served_by = place(made, view, request(b"x" * 1000), 0)
    view.delete("pool.endpoint.a2")
    served_by("a2")
    assert (len(view.prefixes), view.prefixes.blocks_of("a1")) == (0, 0)


def test_a_conversation_that_goes_on_finds_its_beginning() -> None:
    view, made = pool("a1"), producer()
    match(made, view, request(b"x" * 512 + b"first"), place=0)
    found = match(made, view, request(b"x" * 512 + b"second" * 100))
    assert (found.matched.tolist(), found.total) == ([2], 5)


def test_models_and_cache_salts_share_nothing() -> None:
    view, made = pool("a1"), producer()
    match(made, view, request(b"x" * 512), place=0)
    assert match(made, view, request(b"x" * 512), model="other").matched.tolist() == [0]
    assert match(made, view, request(b"x" * 512, cache_salt="tenant")).matched.tolist() == [0]
    assert match(made, view, request(b"x" * 512)).matched.tolist() == [2]


def test_a_request_without_a_prompt_is_neither_found_nor_remembered() -> None:
    view, made = pool("a1"), producer()
    assert match(made, view, request(b""), place=0).total == 0
    assert (len(view.prefixes), made.lookups) == (0, 0)


@pytest.mark.parametrize(
    ("parameters", "reported", "block"),
    [
        ({}, [None, None], 64),
        ({}, [16, 16], 64),
        ({}, [128, 128], 128),
        ({"block_size_tokens": 256}, [None, None], 256),
        ({"block_size_tokens": 256}, [100, None], 100),
        ({"block_size_tokens": 256, "auto_tune": False}, [100, 100], 256),
        ({"block_size": 1025}, [None, None], 257),
        ({"hash_block_size": 64}, [None, None], 64),
        ({"hash_block_size": 2048}, [None, None], 512),
        ({"block_size": 2048, "block_size_tokens": 128}, [None, None], 128),
    ],
)
def test_the_block_is_what_the_servers_report_and_at_least_64_tokens(
    parameters: dict[str, object], reported: list[float | None], block: int
) -> None:
    view = pool("a1", "a2")
    report(view, {CACHE_BLOCK_SIZE: reported})
    assert match(producer(**parameters), view, request(b"x" * 10_000)).block_tokens == block


@pytest.mark.parametrize(
    ("parameters", "blocks"),
    [
        ({"max_prefix_tokens_to_match": 640}, 10),
        ({"max_prefix_tokens_to_match": 10}, 1),
        ({"max_prefix_tokens_to_match": 0, "max_prefix_blocks_to_match": 7}, 7),
        ({"max_prefix_tokens_to_match": 0, "max_prefix_blocks_to_match": 0}, 40),
        ({}, 40),
    ],
)
def test_the_beginning_of_a_prompt_is_looked_at(parameters: dict[str, object], blocks: int) -> None:
    assert match(producer(**parameters), pool("a1"), request(bytes(40 * 256))).total == blocks


@pytest.mark.parametrize(
    ("parameters", "reported", "capacity"),
    [
        ({}, [(16, 40)], 10),  # 640 tokens in blocks of 64
        ({}, [(16, 1)], 1),
        ({}, [(None, 40)], 50),
        ({"auto_tune": False, "block_size_tokens": 64, "lru_capacity_per_server": 20}, [(16, 40)], 20),
        ({"lru_capacity_per_server": 30}, [(None, None)], 30),
    ],
)
def test_an_endpoint_is_thought_to_hold_what_its_cache_has_room_for(
    parameters: dict[str, object], reported: list[tuple[float | None, float | None]], capacity: int
) -> None:
    view = pool("a1")
    report(view, {CACHE_BLOCK_SIZE: [reported[0][0]], CACHE_NUM_BLOCKS: [reported[0][1]]})
    match(producer(**parameters), view, request(bytes(50 * 256)), place=0)
    assert view.prefixes.blocks_of("a1") == capacity


def test_without_auto_tune_a_block_size_is_needed() -> None:
    with pytest.raises(ValueError, match="blockSizeTokens is 0"):
        ApproxPrefixParameters(auto_tune=False, block_size_tokens=0)


def test_older_names_are_pointed_out() -> None:
    assert ApproxPrefixProducer.deprecations(ApproxPrefixParameters(block_size=256, hash_block_size=65)) == [
        "blockSize is deprecated; write blockSizeTokens: 64 (tokens, not bytes)",
        "hashBlockSize is deprecated; write blockSizeTokens: 17 (tokens, not bytes)",
    ]
    assert ApproxPrefixProducer.deprecations(ApproxPrefixParameters(block_size=256, block_size_tokens=96)) == [
        "blockSize is deprecated, and has no effect beside blockSizeTokens; leave it out"
    ]
    assert not ApproxPrefixProducer.deprecations(ApproxPrefixParameters())


@pytest.mark.parametrize(
    ("parameters", "reported", "expected"),
    [
        ({"capacity_factor": 1.5}, 100, 150),
        ({"capacity_factor": 0.1}, 5, 1),
        ({"capacity_factor": 1.5, "lru_capacity_per_server": 11}, None, 16),
        ({"capacity_factor": 2.0, "auto_tune": False, "lru_capacity_per_server": 10}, 100, 20),
    ],
)
def test_more_or_less_than_a_cache_holds_is_remembered(
    parameters: dict[str, object], reported: int | None, expected: int
) -> None:
    view = pool("a1")
    assert len(view.layout) == 1
    if reported is not None:
        report(view, {CACHE_BLOCK_SIZE: [64], CACHE_NUM_BLOCKS: [reported]})
    assert producer(**parameters).capacity(view, 0) == expected
