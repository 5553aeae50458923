"""One running system balances a pool of several engines; one that it doesn't know is added by configuration alone."""

from collections.abc import Sequence

import pytest

from pointsman.local.stack import ENGINE_LABEL, SimulatorPlan
from tests.protocol.steering.conftest import HEADER, LAST_KNOWN, Pool

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIMULATORS = (
    SimulatorPlan(name="by-vllm", engine="vllm"),
    SimulatorPlan(name="by-sglang", engine="sglang"),
    SimulatorPlan(name="by-triton", engine="triton"),
    SimulatorPlan(name="by-us", engine="triton", labels={ENGINE_LABEL: "ours"}),
)
QUEUE = "WaitingQueueSize/core-metrics-extractor"
OURS = """\
- type: core-metrics-extractor
  parameters: {engineConfigs: [{name: ours, queuedRequestsSpec: "our_requests{state=queued}"}]}
"""


def least_queue(picker: str, further: str = "") -> str:
    plugins = f"- {{type: queue-scorer}}\n- {{name: {picker}, type: max-score-picker}}\n{further}"
    return f"{HEADER}\nplugins:\n{plugins}dataLayer: {{{LAST_KNOWN}}}\n"


async def show(pool: Pool, waiting: Sequence[int], ours: int) -> None:
    """Pin the queues of the engines that are known, as each shows them, and ours by its own metric as well."""
    series = {'our_requests{state="running"}': 0, 'our_requests{state="queued"}': ours}
    await pool.pin([{"waiting": count} for count in waiting[:3]] + [{"waiting": waiting[3], "series": series}])


async def test_the_queue_of_every_engine_counts(pool: Pool) -> None:
    await pool.configure(least_queue("best"))
    for least in range(3):
        waiting = [2 if at == least else 5 for at in range(3)] + [9]
        await show(pool, waiting, 0)
        await pool.see(QUEUE, waiting)
        assert await pool.served(20) == [20 if at == least else 0 for at in range(4)]


async def test_a_user_defined_engine_needs_configuration_only(pool: Pool) -> None:
    """What its server shows under other engines' names no longer counts; no process was started anew."""
    before = {process.name: process.pid for process in pool.stack.processes}
    await pool.configure(least_queue("best-of-all", OURS))
    await show(pool, [5, 5, 5, 9], 2)
    await pool.see(QUEUE, [5, 5, 5, 2])
    assert await pool.served(20) == [0, 0, 0, 20]
    assert {process.name: process.pid for process in pool.stack.processes} == before
