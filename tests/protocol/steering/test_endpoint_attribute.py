"""Configuration alone makes a metric steer: `customMetrics` of an engine → `endpoint-attribute-scorer` or `-filter`.

This is the later generation's way. The metric is one that no engine has, and on each page a series of another model
comes before it.
"""

from collections.abc import Sequence

import pytest

from pointsman.local.stack import SimulatorPlan
from tests.protocol.steering.conftest import HEADER, LAST_KNOWN, Pool

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIMULATORS = tuple(SimulatorPlan(name=f"model-{number}") for number in range(1, 5))
DEPTH = "SignalDepth/core-metrics-extractor"


def configuration(plugins: str) -> str:
    return f"""{HEADER}
plugins:
- type: core-metrics-extractor
  parameters:
    engineConfigs:
    - name: vllm
      extends: vllm
      customMetrics:
      - {{attributeKey: SignalDepth, metricSpec: "signal_depth{{model=a}}"}}
{plugins}
dataLayer: {{{LAST_KNOWN}}}
"""


def scorer(name: str, algorithm: str) -> str:
    return (
        f"- {{name: {name}, type: endpoint-attribute-scorer, "
        f"parameters: {{attributeKey: SignalDepth, algorithm: {algorithm}}}}}\n"
    )


async def show(pool: Pool, depths: Sequence[float | None]) -> None:
    """Pin the metric on each server's page, None for no such series, and wait until the picker has it."""
    await pool.pin(
        [
            {"series": {'signal_depth{model="b"}': 0} | ({} if depth is None else {'signal_depth{model="a"}': depth})}
            for depth in depths
        ]
    )
    await pool.see(DEPTH, depths)


async def test_every_request_goes_to_the_best_value(pool: Pool) -> None:
    await pool.configure(
        configuration(scorer("least", "{type: linear_lower_is_better}") + "- {type: max-score-picker}")
    )
    cases: tuple[tuple[float, ...], ...] = ((1.5, 7, 3, 3), (7, 0.25, 3, 3), (9, 9, 8, 9))
    for best, depths in enumerate(cases):
        await show(pool, depths)
        assert await pool.served(20) == [20 if at == best else 0 for at in range(4)]


async def test_a_filter_keeps_who_is_within_or_refuses_and_the_decision_shows_the_values_of_all(pool: Pool) -> None:
    await pool.configure(
        configuration(
            """\
- name: shallow
  type: endpoint-attribute-filter
  parameters:
    attribute: SignalDepth
    algorithm: {type: threshold, threshold: {operator: LessThanOrEqual, value: 5}}
- {type: random-picker}"""
        )
    )
    depths = [5, 9, 6, 1]
    await show(pool, depths)
    counts = await pool.served(60)
    assert counts[1] == counts[2] == 0
    assert min(counts[0], counts[3]) > 10
    decision = await pool.explain(await pool.ask())
    removed = decision["profiles"]["default"]["filters"][0]["removed"]
    assert sorted(removed) == ["default/model-2", "default/model-3"]
    assert [decision["inputs"][DEPTH][f"default/{name}"]["value"] for name in pool.names] == depths
    await show(pool, [6, 9, 6, 7])
    answer = await pool.ask()
    assert answer.status_code == 429, answer.text
