"""A model server dies that has a prompt in its cache: requests for that prompt go elsewhere, until it is back."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pointsman.local.envoy import GATEWAY, STANDALONE
from pointsman.local.services import Picker
from pointsman.local.stack import LocalStack, StackPlan, simulators
from tests.protocol.envoy.conftest import unhurried
from tests.protocol.system.conftest import CONFIGURATION, client, decision
from tests.waiting import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

__all__ = ["client"]

REASONS = {"its scrapes are refused or time out", "a fallback served in its place"}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["ours", "gateway"])
async def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    """Ours gets three destinations of a picker and retries; a gateway gets one, and doesn't."""
    ours = request.param == "ours"
    directory = tmp_path_factory.mktemp(request.param)
    plan = StackPlan(
        simulators=simulators(3, speed=20),
        collectors=1,
        pickers=1,
        configuration=CONFIGURATION.format(endpoints=3 if ours else 1),
        envoy=unhurried(STANDALONE if ours else GATEWAY, directory),
        secure_serving=not ours,
        # a server that stands still for a while isn't taken for a dead one, which refuses its scrapes
        flags={"collector": {"scrape-timeout": "60s"}},
    )
    async with LocalStack(plan, directory) as started:
        yield started


class Asked:
    """What became of a request: its answer, and the picker's record of it. Servers by name."""

    def __init__(self, answer: httpx.Response, record: dict[str, Any]) -> None:
        self.status = answer.status_code
        self.served = answer.headers.get("x-simulator-endpoint")
        self.first_choice = record["endpoint"].removeprefix("default/")
        self.destinations = len(record["destinations"])
        run = record["profiles"][record["primary_profile"]]
        self.ranked_last: dict[str, str] = run["ranked_last"]
        self.prefix = {
            id.removeprefix("default/"): one["scores"]["prefix-cache-scorer"]["score"]
            for id, one in run["endpoints"].items()
        }


async def ask(stack: LocalStack, client: httpx.AsyncClient, prompt: str) -> Asked:
    answer = await client.post("/v1/completions", json={"model": "simulated", "prompt": prompt, "max_tokens": 1})
    return Asked(answer, await decision(stack.pickers, answer.headers["x-request-id"]))


async def served_from_cache(stack: LocalStack, client: httpx.AsyncClient, prompt: str) -> Asked:
    """Ask until the first choice is a server that has all of the prompt in its cache."""

    async def found() -> Asked:
        asked = await ask(stack, client, prompt)
        assert asked.prefix[asked.first_choice] == 1.0
        return asked

    return await eventually(found)


async def down(picker: Picker) -> set[str]:
    """The servers that the picker ranks last."""
    return {
        endpoint["id"].removeprefix("default/")
        for endpoint in (await picker.state())["endpoints"]
        if endpoint["unhealthy"]
    }


async def ranks_last(picker: Picker, *names: str) -> bool:
    """Wait until the picker ranks these servers last, and no others."""

    async def as_wanted() -> bool:
        return await down(picker) == set(names)

    return await eventually(as_wanted, f"{names} rank last")


async def test_a_dead_server_with_the_prompt_in_its_cache_is_not_the_first_choice(
    stack: LocalStack, client: httpx.AsyncClient
) -> None:
    [picker] = stack.pickers
    await ranks_last(picker)
    prompt = "The points are set for the branch line. " * 100
    before = await served_from_cache(stack, client, prompt)
    victim = before.first_choice
    await stack[victim].kill()
    try:
        if before.destinations > 1:  # the first request may meet the dead server, and is saved by a retry
            asked = await ask(stack, client, prompt)
            assert asked.status == 200
            assert asked.first_choice != victim or await down(picker) == {victim}
        await ranks_last(picker, victim)
        for _ in range(5):
            asked = await ask(stack, client, prompt)
            assert asked.prefix[victim] == 1.0, "it would have won"
            assert (asked.status, asked.served) == (200, asked.first_choice)
            assert asked.first_choice != victim
            assert asked.ranked_last.keys() == {f"default/{victim}"}
            assert set(asked.ranked_last.values()) <= REASONS
        notes = (await picker.get("/readyz")).json()["notes"]
        assert notes["endpoints"].startswith(f"1 of 3 endpoints rank last: default/{victim} (")
        assert f'pointsman_picker_endpoint_healthy{{endpoint="default/{victim}"}} 0.0' in await picker.metrics()
    finally:
        await stack[victim].start()
    await ranks_last(picker)
    assert "endpoints" not in (await picker.get("/readyz")).json().get("notes", {})


@pytest.mark.parametrize("stack", ["ours"], indirect=True)
async def test_the_last_server_alive_serves_and_with_all_dead_requests_are_still_routed(
    stack: LocalStack, client: httpx.AsyncClient
) -> None:
    [picker] = stack.pickers
    last, *others = [simulator.name for simulator in stack.simulators]
    try:
        for name in others:
            await stack[name].kill()
        await ranks_last(picker, *others)
        for number in range(5):
            asked = await ask(stack, client, f"{number}: who is left?")
            assert (asked.status, asked.first_choice, asked.served) == (200, last, last)
        await stack[last].kill()
        await ranks_last(picker, last, *others)
        asked = await ask(stack, client, "Is anybody there?")
        assert (asked.status, asked.ranked_last) == (503, {})
        assert asked.first_choice in (last, *others)
    finally:
        for name in (last, *others):
            await stack[name].start()
    await ranks_last(picker)
    assert (await ask(stack, client, "And now?")).status == 200
