"""Every panel of the Grafana board shows something that a running system serves."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx

from pointsman.grafana_board import ROWS
from pointsman.local.stack import LocalStack, StackPlan, simulators
from tests.waiting import eventually

METRIC = re.compile(r"\b(?:pointsman|llm_d_epp|envoy|process)_\w+")
SELECTOR = re.compile(r"\{[^}]*\}")
LABEL = re.compile(r"\bby \(([^)]*)\)")
OF_PROMETHEUS = {"tier", "instance", "le"}
"""Labels that scraping adds, and that of buckets."""


def queries() -> Iterator[tuple[str, str]]:
    """Each query of each panel, with the panel's title."""
    return ((panel.title, query) for row in ROWS.values() for panel in row for query in panel.queries.values())


def labels(query: str) -> set[str]:
    """The labels by which a query groups."""
    return {name.strip() for found in LABEL.findall(query) for name in found.split(",")} - OF_PROMETHEUS


async def test_every_query_of_the_board_finds_its_metrics(tmp_path: Path) -> None:
    plan = StackPlan(simulators=simulators(1, speed=20), collectors=1, pickers=1)
    async with LocalStack(plan, tmp_path) as stack, httpx.AsyncClient(trust_env=False, timeout=30) as client:
        assert stack.envoy is not None
        envoy = stack.envoy
        body = {"model": "simulated", "prompt": "All aboard. " * 100, "max_tokens": 2, "stream": True}

        async def all_found() -> bool:
            """After a request there are series of what is counted by label."""
            (await client.post(f"{stack.url}/v1/completions", json=body)).raise_for_status()
            tiers = [*stack.watchers, *stack.collectors, *stack.pickers]
            pages = [await one.metrics() for one in tiers]
            pages.append((await client.get(f"{envoy.stats_url}/stats/prometheus")).text)
            lines = [line for page in pages for line in page.splitlines()]
            families = {line.split()[2] for line in lines if line.startswith("# TYPE ")}
            served = families | {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
            for title, query in queries():
                for metric in set(METRIC.findall(SELECTOR.sub("", query))) - labels(query):
                    assert metric in served, f"{title}: nobody serves {metric}"
                    samples = [line for line in lines if line.startswith(f"{metric}{{")]
                    for label in labels(query) if samples else ():
                        assert all(f"{label}=" in line for line in samples), f"{title}: {metric} has no label {label}"
            return True

        await eventually(all_found, "the board's metrics", step=0.2)
