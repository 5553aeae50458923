"""The first choice is dead: Envoy takes the picker's next one, and the picker charges the server that really serves."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pointsman.local.envoy import STANDALONE
from pointsman.local.services import Picker
from pointsman.local.stack import LocalStack, StackPlan, simulators
from tests.protocol.envoy.conftest import unhurried
from tests.protocol.system.conftest import decision, nothing_in_flight
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIGURATION = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: random-picker
  parameters: {maxNumOfEndpoints: 3}
"""
"""No collector runs: that a server is dead the picker learns from fallbacks alone, and forgets it after a while."""
DEAD = "model-2"
REQUESTS = 30
SERVED = 'pointsman_picker_served_total{by="'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    """One picker, and three servers that are listed, of which one is gone."""
    directory = tmp_path_factory.mktemp("fallbacks")
    plan = StackPlan(
        simulators=simulators(3, speed=20),
        collectors=0,
        pickers=1,
        configuration=CONFIGURATION,
        envoy=unhurried(STANDALONE, directory),
        flags={"picker": {"drain-delay": "500ms", "seed": 7, "unhealthy-expiry": "500ms"}},
    )
    async with LocalStack(plan, directory) as started:
        await started[DEAD].kill()
        yield started


async def served(picker: Picker) -> Counter[str]:
    """How often the first choice served, a fallback, and so on."""
    lines = [line for line in (await picker.metrics()).splitlines() if line.startswith(SERVED)]
    return Counter({line.removeprefix(SERVED).partition('"')[0]: int(float(line.split()[-1])) for line in lines})


async def forgotten(picker: Picker) -> bool:
    """Wait until the picker ranks no endpoint last."""

    async def found() -> bool:
        return all(endpoint["unhealthy"] is None for endpoint in (await picker.state())["endpoints"])

    return await eventually(found, "no endpoint is unhealthy")


async def test_every_request_is_answered_and_charged_to_and_counted_by_the_server_that_really_serves(
    stack: LocalStack, client: httpx.AsyncClient
) -> None:
    [picker] = stack.pickers
    before, expected = await served(picker), Counter[str]()
    body: dict[str, Any] = {"model": "simulated", "max_tokens": 30_000, "ignore_eos": True, "stream": True}
    for number in range(REQUESTS):
        await forgotten(picker)
        body["prompt"] = f"request {number}"
        async with client.stream("POST", "/v1/completions", json=body) as response:
            arriving = response.aiter_bytes()  # kept: an iterator that is let go of closes the connection
            assert await anext(arriving)
            made = await decision(stack.pickers, response.headers["x-request-id"])
            first, by = made["endpoint"].removeprefix("default/"), response.headers["x-simulator-endpoint"]
            assert by != DEAD
            assert (by != first) is (first == DEAD)
            assert made["served_by"] == ("fallback" if first == DEAD else "first choice")
            assert made["served_endpoint"] == f"default/{by}"
            charged: dict[str, Any] = (await picker.state())["own_inflight"]
            assert {id: load["requests"] for id, load in charged.items()} == {f"default/{by}": 1}
        expected[made["served_by"]] += 1
        await nothing_in_flight(stack.pickers)
    assert expected["fallback"] > 3, "the dead server was seldom chosen"
    assert +(await served(picker) - before) == expected
