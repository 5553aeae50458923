"""What scorers and filters by metrics and attributes of the user's choice cost a decision, by number of endpoints.

    python -m tests.benchmarks.bench_attributes

Prints CPU microseconds of one call for 8, 100 and 1 000 endpoints, all with fresh values, and the same as a ratio to
`queue-scorer`, the plainest of the built-in scorers, which is timed in the same run. Each call is the first after a
change of the values: nothing is kept of the one before. Each figure is the best of several rounds, interleaved.
"""

from collections.abc import Callable

import numpy as np

from services.picker.request import Content, Headers, Request
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter, Scorer
from services.picker.state.layout import Rows
from services.picker.state.view import View
from shared.attributes import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE
from shared.bus.columns import pack_ages, pack_floats
from shared.bus.messages import Frame
from shared.config import load
from shared.config.schema import StaleMetrics
from shared.model import Endpoint
from shared.plugin import Registry, Tier
from tests.benchmarks.bench_decide import seconds

SIZES = (8, 100, 1_000)
ROUNDS = 5
BUDGET = 0.1
"""CPU seconds of a round."""
NOW = 1_000.0
CONFIGURATION = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- name: metric-scorer, Linear
  type: metric-scorer
  parameters: {metricName: WaitingQueueSize, max: 20}
- name: metric-scorer, Softmax
  type: metric-scorer
  parameters: {metricName: WaitingQueueSize, max: 20, normalizationAlgo: Softmax}
- name: endpoint-attribute-scorer, adaptive
  type: endpoint-attribute-scorer
  parameters: {attributeKey: WaitingQueueSize, algorithm: {type: linear_lower_is_better}}
- name: endpoint-attribute-scorer, fixed
  type: endpoint-attribute-scorer
  parameters:
    attributeKey: WaitingQueueSize
    algorithm: {type: linear_lower_is_better, normalization: {fixedRange: {min: 0, max: 20}}}
- name: endpoint-attribute-filter
  type: endpoint-attribute-filter
  parameters:
    attribute: WaitingQueueSize
    algorithm: {type: threshold, threshold: {operator: LessThan, value: 10}}
- name: utilization-filter, 1 condition
  type: utilization-filter
  parameters: {conditions: [{metric: waiting-queue, maxValue: 10}]}
- name: utilization-filter, 4 conditions
  type: utilization-filter
  parameters:
    conditions:
    - {metric: active-requests, maxValue: 10}
    - {metric: running-requests, maxValue: 10}
    - {metric: waiting-queue, maxValue: 10}
    - {metric: kv-cache-utilization, maxValue: 0.5}
"""


def view(size: int) -> View:
    """A view with metrics of every endpoint."""
    made = View()
    endpoints = [
        Endpoint(
            id=f"default/server-{number}",
            name=f"server-{number}",
            address=f"10.0.{number // 250}.{number % 250 + 1}",
            port=8000,
        )
        for number in range(size)
    ]
    made.reset({f"pool.endpoint.{endpoint.id}": endpoint for endpoint in endpoints})
    random = np.random.default_rng(7)
    values = {
        WAITING_QUEUE_SIZE: random.integers(0, 20, size),
        RUNNING_REQUESTS_SIZE: random.integers(0, 20, size),
        KV_CACHE_USAGE: random.random(size),
    }
    frame = Frame(
        sender="bench",
        sent=0.0,
        sequence=1,
        ids=tuple(endpoint.id for endpoint in made.layout.endpoints),
        columns={key.wire: pack_floats(column) for key, column in values.items()},
        ages={key.wire: pack_ages(np.zeros(size)) for key in values},
    )
    made.apply_frame(frame, NOW, 0.0)
    return made


def calls(size: int) -> dict[str, Callable[[], object]]:
    """One call of each plugin, by its name."""
    pool = view(size)
    request = Request(id="request", headers=Headers(), content=Content(api="chat", model="model"), body_size=1_000)
    rows = pool.layout.all_rows
    cycle = Cycle(request, pool, NOW + 0.1, np.random.default_rng(7), StaleMetrics(), model="model", candidates=rows)
    config = load(CONFIGURATION, Registry.installed())
    kept = pool.columns.numbers(WAITING_QUEUE_SIZE.wire).derived
    made: dict[str, Callable[[], object]] = {}

    def first(call: Callable[[Cycle, Rows], object]) -> Callable[[], object]:
        def timed() -> object:
            kept.clear()
            return call(cycle, rows)

        return timed

    for name, plugin in config.instances(Tier.PICKER).items():
        if not config.plugins[name].listed:
            continue
        if isinstance(plugin, Scorer):
            made[name] = first(plugin.score)
        elif isinstance(plugin, Filter):
            made[name] = first(plugin.filter)
    return made


def main() -> None:
    print("endpoints  µs a call  × queue-scorer")
    for size in SIZES:
        subjects = calls(size)
        rounds = [{name: seconds(call, BUDGET) for name, call in subjects.items()} for _ in range(ROUNDS)]
        best = {name: min(round[name] for round in rounds) for name in subjects}
        for name, spent in best.items():
            print(f"{size:9}  {spent * 1e6:9.1f}  {spent / best['queue-scorer']:14.1f}  {name}")


if __name__ == "__main__":
    main()
