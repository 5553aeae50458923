"""What is read from a picker's, a collector's and Envoy's own words."""

import re
from typing import Any

from pointsman.demo.snapshot import ENVOY_STATS, EndpointRow, assigned, endpoint_row, retries


def endpoint(**attributes: tuple[float, float]) -> dict[str, Any]:
    """An endpoint of a picker's `/debug/state`; attributes are (value, age)."""
    return {
        "id": "default/model-1",
        "authority": "127.0.0.1:1",
        "attributes": {
            f"{name}/core-metrics-extractor": {"value": value, "age": age} for name, (value, age) in attributes.items()
        },
        "inflight": {"requests": 7, "tokens": 70, "own_requests": 3, "own_tokens": 30},
    }


def test_an_endpoint_as_a_picker_sees_it() -> None:
    known = endpoint(WaitingQueueSize=(2, 0.1), RunningRequestsSize=(8, 0.1), KVCacheUsagePercent=(0.5, 0.3))
    assert endpoint_row("model-1", "vllm", "up", known, 12) == EndpointRow(
        name="model-1", engine="vllm", condition="up", queue=2, running=8, kv=0.5, age=0.3, in_flight=7, picks=12
    )


def test_what_nobody_knows_is_none() -> None:
    row = endpoint_row("model-1", "vllm", "killed", endpoint(), 0)
    assert (row.queue, row.running, row.kv, row.age) == (None, None, None, None)
    assert endpoint_row("model-1", "vllm", "up", None, 5) == EndpointRow(
        name="model-1", engine="vllm", condition="up", picks=5
    )


def test_whom_a_collector_scrapes() -> None:
    assert assigned({"endpoints": {"pool": 3, "assigned": ["default/model-1", "default/model-3"]}}) == (
        "model-1",
        "model-3",
    )
    assert assigned(None) == ()


def test_envoys_retries() -> None:
    text = "cluster.model-servers.upstream_rq_retry: 12\ncluster.pickers.upstream_rq_retry: 3\n"
    assert retries(text) == {"servers": 12, "pickers": 3}
    assert retries("") == {"servers": 0, "pickers": 0}


def test_the_filter_for_envoy_matches_those_two_statistics_alone() -> None:
    names = ["cluster.model-servers.upstream_rq_retry", "cluster.pickers.upstream_rq_retry"]
    others = ["cluster.pickers.upstream_rq_retry_success", "cluster.pickersXupstream_rq_retry"]
    assert [name for name in names + others if re.search(ENVOY_STATS, name)] == names
