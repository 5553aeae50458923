"""A running system whose configuration and whose servers' metrics a test sets, and what its traffic comes to.

One watcher, one collector, one picker with a fixed seed: with the metrics pinned, how many requests each server gets is
the same in every run.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio

from pointsman.local.envoy import STANDALONE
from pointsman.local.services import Flags
from pointsman.local.stack import LocalStack, SimulatorPlan, StackPlan
from shared.config import load
from shared.plugin import Registry
from tests.protocol.envoy.conftest import unhurried
from tests.protocol.system.conftest import decision, nothing_in_flight
from tests.waiting import eventually

HEADER = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
WORKERS = 8
SEED = 7
ENOUGH = 250
"""Requests by which the shares of these tests are told from even ones."""
LAST_KNOWN = "staleMetrics: {policy: lastKnown}"
"""Of `dataLayer`: a picker or a collector that stands still for a while changes no share."""


def plan(directory: Path, *simulators: SimulatorPlan) -> StackPlan:
    """Fast servers of two models, unless their own flags say otherwise."""
    flags: dict[str, Flags] = {"picker": {"seed": SEED}, "simulator": {"speed": 100, "models": "llama-3-8b,mistral"}}
    envoy = unhurried(STANDALONE, directory)
    return StackPlan(simulators=simulators, collectors=1, pickers=1, configuration=HEADER, envoy=envoy, flags=flags)


class Pool:
    """A stack of one picker. Values are in the order of the plan's simulators."""

    def __init__(self, stack: LocalStack, client: httpx.AsyncClient) -> None:
        self.stack = stack
        self._client = client
        self._numbers = itertools.count()
        self._configured = ""
        self.names = [simulator.name for simulator in stack.simulators]

    async def configure(self, text: str) -> None:
        """Have the watcher publish the configuration, and wait until the picker runs it. Its plugins' names have to
        differ from those that run, unless it was the last one: a test is tried again."""
        wanted = set(load(text, Registry.installed()).plugins)
        if text != self._configured:
            assert wanted != await self._plugins(), "the configuration can't be told from the one that runs"
            self.stack.write_configuration(text)
            self._configured = text

        async def runs() -> bool:
            return await self._plugins() == wanted

        await eventually(runs, f"the picker runs {sorted(wanted)}", step=0.05)

    async def _plugins(self) -> set[str]:
        return set((await self.stack.pickers[0].state())["config"]["plugins"])

    async def pin(self, pins: Sequence[Mapping[str, Any]]) -> None:
        """Have each server show these values on its page, and no others that were pinned before."""
        for server, values in zip(self.stack.simulators, pins, strict=True):
            answer = await self._client.put(f"{server.url}/control/metrics", json=dict(values))
            answer.raise_for_status()

    async def see(self, attribute: str, values: Sequence[float | None]) -> None:
        """Wait until the picker has these values of the attribute, by its wire name; None where it has none."""
        wanted = dict(zip(self.names, values, strict=True))
        found: dict[str, float | None] = {}

        async def sees() -> bool:
            nonlocal found
            found = await self._values(attribute)
            return found == wanted

        await eventually(sees, lambda: f"{attribute} {wanted}; the picker sees {found}", step=0.05)

    async def _values(self, attribute: str) -> dict[str, float | None]:
        state = await self.stack.pickers[0].state()
        found = {
            endpoint["id"].removeprefix("default/"): endpoint["attributes"].get(attribute)
            for endpoint in state["endpoints"]
        }
        return {name: None if item is None else item["value"] for name, item in found.items()}

    async def ask(self, prompt: str = "") -> httpx.Response:
        """One request through Envoy; a prompt that was never sent, unless one is given."""
        number = next(self._numbers)
        body = {"model": "llama-3-8b", "prompt": prompt or f"{number}: where to?", "max_tokens": 1}
        return await self._client.post(f"{self.stack.url}/v1/completions", json=body)

    async def served(self, requests: int) -> list[int]:
        """How many of so many requests with prompts of their own each server has answered."""
        counts: Counter[str] = Counter()
        left = iter(range(requests))

        async def work() -> None:
            for _ in left:
                answer = await self.ask()
                assert answer.status_code == 200, answer.text
                counts[answer.headers["x-simulator-endpoint"]] += 1

        await asyncio.gather(*(work() for _ in range(WORKERS)))
        assert counts.keys() <= set(self.names)
        return [counts[name] for name in self.names]

    async def explain(self, answer: httpx.Response) -> dict[str, Any]:
        """The picker's own account of how it decided on the request of this answer."""
        return await decision(self.stack.pickers, answer.headers["x-request-id"])


CRITICAL = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47}
"""By degrees of freedom, what Pearson's χ² exceeds once in a thousand times (the usual tables)."""


def chi_square(counts: Sequence[int], scores: npt.ArrayLike) -> float:
    """Pearson's statistic of these counts, were each server's chance its score's share."""
    weights = np.asarray(scores, np.float64)
    expected = weights / weights.sum() * sum(counts)
    return float((((np.asarray(counts) - expected) ** 2) / expected).sum())


def check_shares(counts: Sequence[int], scores: npt.ArrayLike) -> None:
    """The counts may well be drawn by these scores, and not evenly: there are enough of them to tell."""
    limit = CRITICAL[len(counts) - 1]
    assert chi_square(counts, scores) < limit, f"{counts} by {scores!r}"
    assert chi_square(counts, np.ones(len(counts))) > 2 * limit, f"{counts} can't be told from chance"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    directory = tmp_path_factory.mktemp("pool")
    async with (
        LocalStack(plan(directory, *request.module.SIMULATORS), directory) as stack,
        httpx.AsyncClient(timeout=30, trust_env=False) as client,
    ):
        yield Pool(stack, client)
        await nothing_in_flight(stack.pickers)
