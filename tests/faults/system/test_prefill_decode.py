"""A pool of prefill and decode servers through Envoy: who computes what, and what becomes of requests when servers die.

The profile is that of the documentation. The decode servers play the sidecar, which fails a request whose prefill
server can't be reached.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pointsman.local.envoy import STANDALONE
from pointsman.local.services import ROOT, Picker
from pointsman.local.stack import LocalStack, SimulatorPlan, StackPlan
from shared.model import ROLE
from tests.protocol.envoy.conftest import unhurried
from tests.protocol.system.conftest import client, decision, nothing_in_flight
from tests.waiting import TIMEOUT, eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

__all__ = ["client"]

PREFILL, DECODE = ("prefill-1", "prefill-2"), ("decode-1", "decode-2")
FALLBACKS = "- {type: max-score-picker, parameters: {maxNumOfEndpoints: 3}}"
SKIPPED = "pointsman_picker_skipped_stages_total"
DECIDED = "llm_d_epp_disagg_decision_total"


def plan(directory: Path) -> StackPlan:
    profile = (ROOT / "docs" / "profiles" / "prefill-decode.yaml").read_text(encoding="utf-8")
    profile = profile.replace("- type: max-score-picker", FALLBACKS)
    servers: list[tuple[str, str, dict[str, str]]] = [(name, "prefill", {}) for name in PREFILL] + [
        (name, "decode", {"sidecar": "true"}) for name in DECODE
    ]
    return StackPlan(
        simulators=tuple(
            SimulatorPlan(name=name, labels={ROLE: role}, flags={"speed": 20, **flags}) for name, role, flags in servers
        ),
        collectors=1,
        pickers=1,
        configuration=profile,
        envoy=unhurried(STANDALONE, directory),
        # a server that stands still for a while isn't taken for a dead one, which refuses its scrapes
        flags={"collector": {"scrape-timeout": "60s"}},
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    directory = tmp_path_factory.mktemp("prefill-decode")
    async with LocalStack(plan(directory), directory) as started:
        yield started


_numbers = iter(range(10**9))


def body(**more: Any) -> dict[str, Any]:
    """A request for a prompt that no server has, long enough to be prefilled elsewhere."""
    prompt = f"Train {next(_numbers)} asks for the branch line. " * 60
    return {"model": "simulated", "prompt": prompt, "max_tokens": 2, "ignore_eos": True, **more}


class Asked:
    """What became of a request: its answer, and the picker's record of it. Servers by name."""

    def __init__(self, answer: httpx.Response, record: dict[str, Any]) -> None:
        self.status = answer.status_code
        self.served = answer.headers.get("x-simulator-endpoint")
        self.prefilled = answer.headers.get("x-simulator-prefill")
        self.stages: str = record["stages"]
        self.skipped: dict[str, str] = record["skipped_stages"]
        self.prefill = record["roles"].get("prefill", {}).get("endpoint", "").removeprefix("default/")
        self.served_by: str = record["served_by"]

    def __repr__(self) -> str:
        return f"<{self.status} of {self.served} after {self.prefilled}, {self.stages}, prefill by {self.prefill!r}>"


async def ask(stack: LocalStack, client: httpx.AsyncClient) -> Asked:
    answer = await client.post("/v1/completions", json=body())
    return Asked(answer, await decision(stack.pickers, answer.headers["x-request-id"]))


async def ask_often(stack: LocalStack, client: httpx.AsyncClient, times: int = 12) -> list[Asked]:
    return [await ask(stack, client) for _ in range(times)]


async def ranks_last(picker: Picker, *names: str) -> bool:
    """Wait until the picker ranks these servers last, and no others."""

    async def as_wanted() -> bool:
        down = {
            endpoint["id"].removeprefix("default/")
            for endpoint in (await picker.state())["endpoints"]
            if endpoint["unhealthy"]
        }
        assert down == set(names)
        return True

    return await eventually(as_wanted, f"{names} rank last")


async def counted(picker: Picker, series: str, **labels: str) -> float:
    """The sum of a counter's series with these labels."""
    lines = [line for line in (await picker.metrics()).splitlines() if line.startswith(f"{series}{{")]
    wanted = [f'{name}="{value}"' for name, value in labels.items()]
    return sum(float(line.split()[-1]) for line in lines if all(pair in line for pair in wanted))


async def back(stack: LocalStack, client: httpx.AsyncClient, *names: str) -> None:
    """Start servers again, and wait until each has done its work."""
    for name in names:
        await stack[name].start()
    await ranks_last(stack.pickers[0])
    seen: Counter[str | None] = Counter()

    async def all_work() -> bool:
        asked = await ask(stack, client)
        assert asked.status == 200
        seen.update((asked.served, asked.prefilled))
        return seen.keys() >= {*names}

    await eventually(all_work, lambda: f"{names} work; these do: {seen}")


async def test_a_prompt_is_computed_at_one_server_and_answered_by_another(
    stack: LocalStack, client: httpx.AsyncClient
) -> None:
    await ranks_last(stack.pickers[0])
    for asked in await ask_often(stack, client):
        assert asked.status == 200
        assert asked.served in DECODE
        assert asked.prefilled in PREFILL
        assert (asked.stages, asked.prefill, asked.skipped) == ("prefill-decode", asked.prefilled, {})


async def test_a_prompt_that_the_decode_server_has_isnt_sent_to_prefill(
    stack: LocalStack, client: httpx.AsyncClient
) -> None:
    same = body()
    records = []
    for _ in range(2):
        answer = await client.post("/v1/completions", json=same)
        records.append(Asked(answer, await decision(stack.pickers, answer.headers["x-request-id"])))
    assert [record.stages for record in records] == ["prefill-decode", "decode-only"]
    assert records[1].skipped == {}, "nothing is lacking"


async def test_both_servers_are_charged_and_the_prefill_only_until_the_response_begins(
    stack: LocalStack, client: httpx.AsyncClient
) -> None:
    [picker] = stack.pickers
    servers = {server.name: server for server in stack.simulators}
    for name in PREFILL:
        await set_faults(servers[name].url, {"inference": {"kind": "hang"}})
    long = body(stream=True, max_tokens=30_000)
    request = client.build_request("POST", "/v1/completions", json=long)
    charged: dict[str, Any] = {}

    async def both() -> bool:
        nonlocal charged
        charged = (await picker.state())["own_inflight"]
        return len(charged) == 2

    async def decode_alone() -> bool:
        nonlocal charged
        charged = (await picker.state())["own_inflight"]
        return len(charged) == 1

    sending = asyncio.create_task(client.send(request, stream=True))
    try:
        await eventually(both, lambda: f"both servers are charged: {charged}")
        roles = {id.removeprefix("default/").rpartition("-")[0]: load for id, load in charged.items()}
        assert roles["prefill"] == roles["decode"] == {"requests": 1, "tokens": len(long["prompt"]) // 4}
    finally:
        for name in PREFILL:
            await set_faults(servers[name].url, {"inference": None})
    response = await sending
    await eventually(decode_alone, lambda: f"the decode server alone is charged: {charged}")
    assert response.headers["x-simulator-endpoint"] in next(iter(charged))
    await response.aclose()
    await nothing_in_flight(stack.pickers)


async def set_faults(url: str, faults: dict[str, Any]) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as client:
        (await client.put(f"{url}/control/faults", json=faults)).raise_for_status()


async def test_a_dead_prefill_server_costs_the_one_request_from_which_the_picker_learns_of_it(
    stack: LocalStack, client: httpx.AsyncClient
) -> None:
    await stack["prefill-1"].kill()
    try:
        asked = await ask_often(stack, client)
        failed = [request for request in asked if request.status != 200]
        assert len(failed) <= 1, asked
        assert all((result.status, result.prefill) == (502, "prefill-1") for result in failed), asked
        await ranks_last(stack.pickers[0], "prefill-1")
        for answer in await ask_often(stack, client):
            assert (answer.status, answer.prefilled, answer.stages) == (200, "prefill-2", "prefill-decode")
    finally:
        await back(stack, client, "prefill-1")


async def test_a_dead_decode_server_costs_no_request(stack: LocalStack, client: httpx.AsyncClient) -> None:
    await stack["decode-1"].kill()
    try:
        for answer in await ask_often(stack, client):
            assert (answer.status, answer.served, answer.stages) == (200, "decode-2", "prefill-decode"), answer
        await ranks_last(stack.pickers[0], "decode-1")
        assert {answer.served_by for answer in await ask_often(stack, client)} == {"first choice"}
    finally:
        await back(stack, client, "decode-1")


@pytest.mark.parametrize(("listed", "why"), [(True, "down"), (False, "no endpoint")])
async def test_without_prefill_servers_decode_servers_do_everything_and_the_picker_says_so(
    stack: LocalStack, client: httpx.AsyncClient, listed: bool, why: str
) -> None:
    [picker] = stack.pickers
    for name in PREFILL:
        await stack[name].kill()
    try:
        if listed:
            failed = [answer for answer in await ask_often(stack, client) if answer.status != 200]
            assert len(failed) <= len(PREFILL), failed
            await ranks_last(picker, *PREFILL)
        else:
            await only(stack, [server for server in stack.simulators if server.name in DECODE])
        before = await counted(picker, SKIPPED, stage="prefill", reason=why)
        decided = await counted(picker, DECIDED, decision_type="decode-only")
        asked = await ask_often(stack, client)
        for answer in asked:
            assert (answer.status, answer.prefilled, answer.stages) == (200, None, "decode-only"), answer
            assert answer.served in DECODE
            assert answer.skipped == {"prefill": why}
        assert await counted(picker, SKIPPED, stage="prefill", reason=why) == before + len(asked)
        assert await counted(picker, DECIDED, decision_type="decode-only") == decided + len(asked)
        if listed:
            assert "prefill-1" in str((await picker.get("/readyz")).json()["notes"])
    finally:
        await only(stack, stack.simulators)
        await back(stack, client, *PREFILL)


async def only(stack: LocalStack, servers: Sequence[Any]) -> None:
    """List these servers, and wait until the picker knows."""
    stack.write_endpoints(servers)
    names = {f"default/{server.name}" for server in servers}

    async def known() -> bool:
        return {endpoint["id"] for endpoint in (await stack.pickers[0].state())["endpoints"]} == names

    await eventually(known, f"the pool is {sorted(names)}")
