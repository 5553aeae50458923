"""Every panel of the Grafana boards, and every alert, goes by something that a running system serves."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import yaml

from pointsman.docs import RULES
from pointsman.grafana_board import BOARDS
from pointsman.local.stack import LocalStack, StackPlan, simulators
from tests.waiting import eventually

METRIC = re.compile(r"\b(?:pointsman|llm_d_epp|envoy|process)_\w+")
SELECTOR = re.compile(r"\{[^}]*\}")
LABEL = re.compile(r"\bby \(([^)]*)\)")
OF_PROMETHEUS = {"tier", "instance", "le", "namespace", "job"}
"""Labels that scraping adds, and that of buckets."""


def queries() -> Iterator[tuple[str, str]]:
    """Each query of each panel and alert, with its title."""
    for board in BOARDS.values():
        for row in board.rows.values():
            yield from ((panel.title, query) for panel in row for query in panel.queries.values())
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    yield from ((rule["alert"], rule["expr"]) for rule in group["rules"])


def labels(query: str) -> set[str]:
    """The labels by which a query groups."""
    return {name.strip() for found in LABEL.findall(query) for name in found.split(",")} - OF_PROMETHEUS


async def test_every_query_of_the_boards_and_alerts_finds_its_metrics(tmp_path: Path) -> None:
    plan = StackPlan(simulators=simulators(1, speed=20), collectors=1, pickers=1)
    async with LocalStack(plan, tmp_path) as stack, httpx.AsyncClient(trust_env=False, timeout=30) as client:
        assert stack.envoy is not None
        envoy = stack.envoy
        body = {"model": "simulated", "prompt": "All aboard. " * 100, "max_tokens": 2, "stream": True}

        async def all_found() -> bool:
            """After a request there are series of what is counted by label."""
            (await client.post(f"{stack.url}/v1/completions", json=body)).raise_for_status()
            tiers = [*stack.watchers, *stack.collectors, *stack.pickers]
            pages = [await tier.metrics() for tier in tiers]
            pages.append((await client.get(f"{envoy.stats_url}/stats/prometheus")).text)
            lines = [line for page in pages for line in page.splitlines()]
            kinds = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE "))
            families = set(kinds)
            for name in (name for name, kind in kinds.items() if kind == "histogram"):
                families |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
            served = families | {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
            for title, query in queries():
                for metric in set(METRIC.findall(SELECTOR.sub("", query))) - labels(query):
                    assert metric in served, f"{title}: nobody serves {metric}"
                    samples = [line for line in lines if line.startswith(f"{metric}{{")]
                    for label in labels(query) if samples else ():
                        assert all(f"{label}=" in line for line in samples), f"{title}: {metric} has no label {label}"
            return True

        await eventually(all_found, "the boards' metrics", step=0.2)
