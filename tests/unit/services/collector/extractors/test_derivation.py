"""Quantities that an engine doesn't publish, from those that it does."""

from typing import Any

import pytest

from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.extractors.core.binding import CoreBinding
from services.collector.page.selection import Outcome
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, AttributeMap
from tests.unit.services.collector.extractors.test_core import labelled, parameters, read


def bound(**engine: Any) -> CoreBinding:
    return CoreMetricsExtractor("core", parameters(engineConfigs=[{"name": "mine", **engine}])).bind(labelled("mine"))


def values(binding: CoreBinding, page: str) -> dict[str, Any]:
    attributes = AttributeMap()
    read(binding, page, attributes)
    return {key.name: sample.value for key, sample in attributes.items()}


def outcomes(binding: CoreBinding, attribute: str) -> dict[str, Outcome]:
    """What was said of each specification that an attribute can be made of."""
    return {finding.what: finding.outcome for finding in binding.findings() if finding.attribute == attribute}


REQUESTS = {"allRequestsSpec": "r{type=active}", "runningRequestsSpec": "r{type=scheduled}"}
BLOCKS = {"usedKvBlocksSpec": "b{type=used}", "maxKvBlocksSpec": "b{type=max}"}
TOKENS = {"usedKvTokensSpec": "t_used", "maxKvTokensSpec": "t_max"}


@pytest.mark.parametrize(
    ("page", "waiting"),
    [
        ('r{type="active"} 9\nr{type="scheduled"} 6\n', 3.0),
        ('q 5\nr{type="active"} 9\nr{type="scheduled"} 6\n', 5.0),
        ('r{type="active"} 2\nr{type="scheduled"} 6\n', 0.0),
    ],
    ids=["all less those that run", "the direct metric goes before", "counted one after the other: never below zero"],
)
def test_how_many_wait(page: str, waiting: float) -> None:
    found = values(bound(queuedRequestsSpec="q", **REQUESTS), page)
    assert found == {"WaitingQueueSize": waiting, "RunningRequestsSize": 6.0}


@pytest.mark.parametrize(
    ("page", "missing"),
    [
        ('r{type="scheduled"} 6\n', {"r{type=active}": Outcome.NO_SERIES, "r{type=scheduled}": Outcome.FOUND}),
        ('r{type="active"} 6\n', {"r{type=active}": Outcome.FOUND, "r{type=scheduled}": Outcome.NO_SERIES}),
        ("other 6\n", {"r{type=active}": Outcome.ABSENT, "r{type=scheduled}": Outcome.ABSENT}),
        (
            'r{type="active"} NaN\nr{type="scheduled"} 6\n',
            {"r{type=active}": Outcome.INVALID, "r{type=scheduled}": Outcome.FOUND},
        ),
        (
            'r{type="active"} 3\nr{type="scheduled"} -1\n',
            {"r{type=active}": Outcome.FOUND, "r{type=scheduled}": Outcome.INVALID},
        ),
    ],
)
def test_without_a_constituent_a_quantity_is_missing_and_the_findings_say_which(
    page: str, missing: dict[str, Outcome]
) -> None:
    binding = bound(**REQUESTS)
    assert "WaitingQueueSize" not in values(binding, page)
    assert outcomes(binding, "WaitingQueueSize") == missing


@pytest.mark.parametrize(
    ("engine", "page", "usage"),
    [
        (BLOCKS, 'b{type="used"} 200\nb{type="max"} 500\n', 0.4),
        (BLOCKS, 'b{type="used"} 0\nb{type="max"} 500\n', 0.0),
        (TOKENS, "t_used 10\nt_max 40\n", 0.25),
        (BLOCKS | TOKENS, 'b{type="used"} 1\nb{type="max"} 2\nt_used 10\nt_max 40\n', 0.5),
        (BLOCKS | TOKENS, 'b{type="used"} 1\nt_used 10\nt_max 40\n', 0.25),
        (BLOCKS | {"kvUsageSpec": "share"}, 'share 0.7\nb{type="used"} 1\nb{type="max"} 2\n', 0.7),
        (BLOCKS | {"kvUsageSpec": "share"}, 'b{type="used"} 1\nb{type="max"} 2\n', 0.5),
    ],
)
def test_kv_cache_use_is_a_share_of_blocks_or_of_tokens(engine: dict[str, str], page: str, usage: float) -> None:
    assert values(bound(**engine), page)["KVCacheUsagePercent"] == usage


@pytest.mark.parametrize(
    ("engine", "page", "expected"),
    [
        ({"cacheNumBlocksSpec": "n"}, "n 80\n", 0.25),
        ({"cacheInfoSpec": "i", "cacheNumBlocksLabelName": "n"}, 'i{n="80"} 1\n', 0.25),
        ({"cacheNumBlocksSpec": "n", "maxKvBlocksSpec": "m"}, "n 80\nm 40\n", 0.5),
        ({"cacheNumBlocksSpec": "n", "cacheInfoSpec": "i"}, 'n 80\ni{num_gpu_blocks="40"} 1\n', 0.25),
    ],
)
def test_where_the_most_blocks_are_not_named_the_number_of_blocks_is_taken(
    engine: dict[str, str], page: str, expected: float
) -> None:
    assert values(bound(usedKvBlocksSpec="u", **engine), "u 20\n" + page)["KVCacheUsagePercent"] == expected


@pytest.mark.parametrize("most", ["0", "-1", "NaN"])
def test_of_nothing_there_is_no_share(most: str) -> None:
    binding = bound(**BLOCKS)
    assert values(binding, f'b{{type="used"}} 0\nb{{type="max"}} {most}\n') == {}
    assert outcomes(binding, "KVCacheUsagePercent")["b{type=max}"] is Outcome.INVALID


def test_constituents_come_from_one_page() -> None:
    binding, attributes = bound(**REQUESTS), AttributeMap()
    read(binding, 'r{type="active"} 9\nr{type="scheduled"} 6\n', attributes, at=1.0)
    read(binding, 'r{type="active"} 20\n', attributes, at=2.0)
    sample = attributes.sample(WAITING_QUEUE_SIZE)
    assert sample is not None
    assert (sample.value, sample.at) == (3.0, 1.0)


def test_a_derived_value_that_moves_is_a_change() -> None:
    binding, attributes = bound(**BLOCKS), AttributeMap()
    assert read(binding, 'b{type="used"} 1\nb{type="max"} 4\n', attributes)
    assert not read(binding, 'b{type="used"} 2\nb{type="max"} 8\n', attributes)
    assert read(binding, 'b{type="used"} 2\nb{type="max"} 4\n', attributes)
    assert attributes.get(KV_CACHE_USAGE) == 0.5
