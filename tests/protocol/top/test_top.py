"""`pointsman top` as a process beside a whole system: what it shows is what is there."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from pointsman.local.envoy import STANDALONE
from pointsman.local.stack import LocalStack, SimulatorPlan, StackPlan
from tests.nats import free_port
from tests.protocol.envoy.conftest import unhurried
from tests.waiting import eventually

CONFIGURATION = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- type: queue-scorer
- type: max-score-picker
- {type: concurrency-detector, parameters: {maxConcurrency: 2}}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: queue-scorer}, {pluginRef: max-score-picker}]}
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
"""
"""The pool takes four requests, or twice that until two pickers know of each other's; others wait at the pickers."""
REQUESTS = 12
POOL = {"POINTSMAN_POOL_NAME": "llama"}


async def top(nats_url: str, *flags: str, **environment: str) -> tuple[int, str, str]:
    """(exit code, output, errors)."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pointsman", "top", "--once", *flags),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"POINTSMAN_NATS_URL": nats_url} | environment,
    )
    output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    directory = tmp_path_factory.mktemp("top")
    plan = StackPlan(
        simulators=tuple(
            SimulatorPlan(name=name, labels={"llm-d.ai/role": "decode"}, flags={"models": "base"})
            for name in ("gpu-2", "gpu-10")
        ),
        collectors=1,
        pickers=2,
        configuration=CONFIGURATION,
        envoy=unhurried(STANDALONE, directory),
        pool_name="llama",
    )
    async with LocalStack(plan, directory) as started:
        yield started


@pytest.mark.asyncio(loop_scope="module")
async def test_it_shows_endpoints_members_and_queues(stack: LocalStack) -> None:
    request = {"model": "base", "prompt": "Hello", "max_tokens": 50_000, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=stack.url, timeout=None, trust_env=False) as client:
        open_requests = [asyncio.create_task(client.post("/v1/completions", json=request)) for _ in range(REQUESTS)]
        try:
            await eventually(lambda: shown(stack), step=0.5)
        finally:
            for task in open_requests:
                task.cancel()
            await asyncio.gather(*open_requests, return_exceptions=True)
    await eventually(lambda: printed(stack), step=0.5)


async def shown(stack: LocalStack) -> bool:
    """Whether it shows all, as it does once all requests are where they stay and all members have been heard."""
    code, output, errors = await top(stack.nats.url, "--format", "json", **POOL)
    assert (code, errors) == (0, "")
    seen: Any = msgspec.json.decode(output)
    assert len(seen["queues"]) == 1
    [band] = seen["queues"]
    running = sum(row["running"] or 0 for row in seen["endpoints"])
    assert band["requests"] > 0
    assert band["requests"] + running == REQUESTS
    assert (band["priority"], len(band["flows"])) == (0, 1)
    assert band["oldest"] > 0
    assert [row["name"] for row in seen["endpoints"]] == ["gpu-2", "gpu-10"]
    for row, server in zip(seen["endpoints"], stack.simulators, strict=True):
        assert (row["authority"], row["role"], row["reachable"]) == (server.authority, "decode", True)
        assert (row["in_flight"], row["collector"]) == (row["running"], "collector-1")
    members = [(row["tier"], row["id"], row["leader"], row["endpoints"]) for row in seen["members"]]
    assert members == [
        ("watcher", "watcher-1", True, None),
        ("collector", "collector-1", False, 2),
        ("picker", "picker-1", False, None),
        ("picker", "picker-2", False, None),
    ]
    return True


async def printed(stack: LocalStack) -> bool:
    """Whether it prints the same for people."""
    code, text, errors = await top(stack.nats.url, "--sort", "queue", **POOL)
    assert (code, errors) == (0, "")
    for word in ("gpu-10", "decode", "watcher-1 leads", "collector-1 scrapes 2", "picker-2"):
        assert word in text
    return True


@pytest.mark.asyncio(loop_scope="module")
async def test_it_says_why_there_is_nothing_to_show(stack: LocalStack, tmp_path: Path) -> None:
    async def connected() -> bool:
        code, output, _ = await top(stack.nats.url, "--pool-name", "other", "--wait", "200ms")
        assert code == 1
        return "no complete set of the facts of default_other yet" in output

    await eventually(connected)
    code, output, _ = await top(f"nats://127.0.0.1:{free_port()}", "--wait", "200ms", "--format", "json")
    assert code == 1
    assert "not connected" in msgspec.json.decode(output)["state"]["reason"]
