"""Configuration alone makes a metric steer: source → `prometheus-metric` → `metric-scorer`, the older generation.

Every server runs two models. The scorer is to see one's requests only, and the other's stand first on each page, in the
opposite order: read without the label filter, they would send the traffic elsewhere. A fifth server shows the other
model's requests alone, and is idle: what it doesn't have is absent, not zero, and it gets nothing.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from pointsman.local.stack import SimulatorPlan
from tests.protocol.steering.conftest import ENOUGH, HEADER, LAST_KNOWN, Pool, check_shares

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIMULATORS = (
    *(SimulatorPlan(name=f"model-{number}") for number in "1234"),
    SimulatorPlan(name="other", flags={"models": "mistral,llama-3-8b"}),
)
RUNNING = "vllm:num_requests_running/running-requests-extractor"

AFFINITY_AND_LOAD = """\
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
featureGates: [dataLayer]
plugins:
- {name: prometheus-source, type: metrics-data-source, parameters: {path: /metrics, scheme: http}}
- name: running-requests-extractor
  type: prometheus-metric
  parameters: {metricName: "vllm:num_requests_running", labels: {model_name: "llama-3-8b"}}
- name: active-load-scorer
  type: metric-scorer
  parameters:
    metricName: vllm:num_requests_running
    optimizationMode: Minimize
    normalizationAlgo: Softmax
    min: 0
    max: 50
- type: max-score-picker
- type: single-profile-handler
- {type: prefix-cache-scorer, parameters: {blockSizeTokens: 64}}
data:
  staleMetrics: {policy: lastKnown}
  sources:
  - {pluginRef: prometheus-source, extractors: [{pluginRef: running-requests-extractor}]}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: active-load-scorer, weight: 40}
  - {pluginRef: prefix-cache-scorer, weight: 60}
  - {pluginRef: max-score-picker}
"""
"""The published example of custom metric scheduling, in its own generation's words."""


def weighted(name: str, **parameters: Any) -> str:
    """A configuration in which the metric alone decides, by chance in proportion to its scores."""
    return f"""{HEADER}
plugins:
- {{type: metrics-data-source}}
- name: running-requests-extractor
  type: prometheus-metric
  parameters: {{metricName: "vllm:num_requests_running", labels: {{model_name: llama-3-8b}}}}
- {{name: {name}, type: metric-scorer, parameters: {{metricName: running-requests-extractor, {_flow(parameters)}}}}}
- {{type: weighted-random-picker}}
dataLayer:
  {LAST_KNOWN}
  sources:
  - {{pluginRef: metrics-data-source, extractors: [{{pluginRef: running-requests-extractor}}]}}
"""


def _flow(parameters: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in parameters.items())


async def show(pool: Pool, running: Sequence[int]) -> None:
    """Pin the requests of our model that each of the four runs, and of the other the opposite; wait for the picker."""
    others = [max(running) - count for count in running]
    ours = [
        {"running": count, "series": {'vllm:num_requests_running{engine="0",model_name="mistral"}': other}}
        for count, other in zip(running, others, strict=True)
    ]
    await pool.pin([*ours, {"running": 0}])
    await pool.see(RUNNING, [*running, None])


async def served(pool: Pool, requests: int) -> list[int]:
    """How many requests each of the four has answered, of so many."""
    *ours, other = await pool.served(requests)
    assert other == 0
    return ours


async def test_every_request_goes_to_the_arg_max_of_the_formula(pool: Pool) -> None:
    await pool.configure(AFFINITY_AND_LOAD)
    for running in ([3, 1, 2, 4], [0, 9, 50, 60]):
        await show(pool, running)
        least = running.index(min(running))
        assert await served(pool, 20) == [20 if at == least else 0 for at in range(4)]


async def test_a_cached_prefix_outweighs_the_load(pool: Pool) -> None:
    """Of 100 points a held prefix has 60, a load that is far below the others' 40."""
    await pool.configure(AFFINITY_AND_LOAD)
    prompt = "The signalman keeps a book of all trains that have passed. " * 40
    await show(pool, [9, 9, 0, 9])
    assert (await pool.ask(prompt)).headers["x-simulator-endpoint"] == "model-3"
    await show(pool, [0, 9, 9, 9])
    assert (await pool.ask(prompt)).headers["x-simulator-endpoint"] == "model-3"
    assert (await pool.ask()).headers["x-simulator-endpoint"] == "model-1"


async def test_shares_under_linear_are_those_of_the_scores_and_follow_the_metric(pool: Pool) -> None:
    await pool.configure(weighted("linear", optimizationMode="Minimize", min=0, max=50))
    await show(pool, [5, 20, 30, 45])
    check_shares(await served(pool, ENOUGH), [0.9, 0.6, 0.4, 0.1])
    await show(pool, [45, 5, 55, 20])
    counts = await served(pool, ENOUGH)
    assert counts[2] == 0, "beyond max an endpoint scores 0"
    check_shares([counts[at] for at in (0, 1, 3)], [0.1, 0.9, 0.6])
