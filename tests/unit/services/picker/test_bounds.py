"""Numbers that can't be, out of frames: they aren't taken, and no endpoint's sets what holds for the pool."""

import math
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.picker.admin.metrics import PickerMetrics
from services.picker.scheduling.cycle import PREFIX_MATCH
from services.picker.scheduling.producers.approx_prefix import MAX_BLOCKS, ApproxPrefixProducer
from services.picker.state.view import View
from shared.attributes import (
    ACTIVE_MODELS,
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    AttributeKey,
)
from tests.unit.services.picker.world import NOW, cycle, facts, frame, pool, report, request
from tests.unit.services.picker.world import endpoint as make

OWN = AttributeKey("Own", "mine", float)
WRONG = (math.inf, -math.inf, 1.7e308, -1e200)


class Heard(list[tuple[str, str, str, float, int]]):
    def __call__(self, *told: Any) -> None:
        self.append(told)


def view(heard: Heard, *names: str) -> View:
    made = View(on_out_of_range=heard)
    made.reset(facts(*map(make, names)))
    return made


@pytest.mark.parametrize("key", [WAITING_QUEUE_SIZE, KV_CACHE_USAGE, CACHE_BLOCK_SIZE, OWN], ids=str)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("ids", [["a1", "a2", "a3"], ["a2", "a3", "b9"]], ids=["all", "some"])
def test_a_number_beyond_the_bounds_leaves_the_last_one_to_age_and_is_told(
    key: AttributeKey[float], wrong: float, ids: list[str]
) -> None:
    heard = Heard()
    made = view(heard, "a1", "a2", "a3")
    report(made, {key: [1, 1, 1], RUNNING_REQUESTS_SIZE: [2, 2, 2]})
    values: dict[AttributeKey[Any], list[Any]] = {
        key: [2, wrong, None],
        RUNNING_REQUESTS_SIZE: [3, 3, None],
        ACTIVE_MODELS: [["x"]] * 3,
    }
    made.apply_frame(frame(ids, values, sender="c1"), NOW + 1, 0.0)
    column, running = made.columns.numbers(key.wire), made.columns.numbers(RUNNING_REQUESTS_SIZE.wire)
    expected = {"a1": (1.0, NOW), "a2": (1.0, NOW), "a3": (1.0, NOW)} | {ids[0]: (2.0, NOW + 1)}
    assert dict(zip(made.layout.index, zip(column.values, column.at, strict=True), strict=True)) == expected
    assert running.values[made.layout.index[ids[1]]] == 3, "the other attributes of that endpoint are taken"
    assert heard == [("c1", key.wire, ids[1], wrong, 1)]


def test_numbers_beyond_the_bounds_are_counted_by_attribute() -> None:
    heard = Heard()
    made = view(heard, "a1", "a2")
    report(made, {OWN: [math.nan, 1.0]})
    assert not heard, "a value that isn't there is no wrong one"
    report(made, {WAITING_QUEUE_SIZE: [-1, 1e300], OWN: [1e300, 1.0], KV_CACHE_USAGE: [0, 1]})
    assert [(attribute, value, count) for _, attribute, _, value, count in heard] == [
        (WAITING_QUEUE_SIZE.wire, -1.0, 2),
        (OWN.wire, 1e300, 1),
    ]


def test_whatever_servers_report_the_metrics_are_finite() -> None:
    made, registry = pool("a1", "a2", "a3"), CollectorRegistry()
    PickerMetrics(registry, made, lambda: NOW)
    keys = (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE)
    for values in ([1.7e308, 1.7e308, -1.7e308], [math.inf, 1, 2], [1e9, 1e9, 0]):
        report(made, dict.fromkeys(keys, values))
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            assert [
                sample for sample in family.samples if "age" not in sample.name and not math.isfinite(sample.value)
            ] == []


def test_a_column_can_hold_any_number_within_the_bounds() -> None:
    """No sum, mean or square of what a pool of thousands reports is infinite."""
    values = np.full(10_000, OWN.bounds.maximum)
    values[::2] = OWN.bounds.minimum
    with np.errstate(all="raise"):
        assert np.isfinite([values.sum(), values.mean(), values.std()]).all()


@pytest.mark.parametrize("wrong", [65_536, 10**17, 1e200, math.inf, 1])
@pytest.mark.parametrize("others", [1, 2, 9])
def test_what_one_server_says_of_its_blocks_moves_no_prompt(others: int, wrong: float) -> None:
    """Turns of conversations stay where their beginnings went."""
    names = [f"a{number}" for number in range(others + 1)]
    made, producer = pool(*names), ApproxPrefixProducer("prefix")
    report(made, {CACHE_BLOCK_SIZE: [16] * (others + 1), CACHE_NUM_BLOCKS: [100_000] * (others + 1)})
    prompts = [bytes([turn]) * 4_000 for turn in range(20)]
    for prompt in prompts:
        run = cycle(made, request(prompt))
        producer.produce(run)
        producer.picked(run, 1)
    later = {CACHE_BLOCK_SIZE: [wrong] + [16] * others, CACHE_NUM_BLOCKS: [wrong] + [100_000] * others}
    report(made, later, now=NOW + 1)
    for prompt in prompts:
        run = cycle(made, request(prompt + b"and then"))
        producer.produce(run)
        match = run.get(PREFIX_MATCH)
        assert match is not None
        assert match.block_tokens == 64
        assert match.matched[1] == 15


@pytest.mark.parametrize(("blocks", "size"), [(1e9, 65_536), (1e17, 16), (1e200, 1e200)])
def test_what_is_remembered_of_an_endpoint_is_bounded_whatever_it_reports(blocks: float, size: float) -> None:
    made, producer = pool("a1"), ApproxPrefixProducer("prefix")
    report(made, {CACHE_BLOCK_SIZE: [size], CACHE_NUM_BLOCKS: [blocks]})
    run = cycle(made, request(b"x" * 1_000))
    producer.produce(run)
    made.prefixes.add("a1", range(1, 300_000), MAX_BLOCKS * 2)
    for _ in range(20):  # each makes some more room
        producer.picked(run, 0)
    assert made.prefixes.blocks_of("a1") <= MAX_BLOCKS
