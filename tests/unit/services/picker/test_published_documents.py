"""The published configurations that load also run: each decides on requests, and no plugin of it fails."""

import asyncio
import csv
import os
import re
from pathlib import Path

import numpy as np
import pytest

from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.page.reader import MetricsReader
from services.picker.pipeline import build
from services.picker.request import Route
from services.picker.state.topology import TOPOLOGY, Topology
from services.picker.state.view import View
from shared.attributes import (
    ACTIVE_MODELS,
    ALWAYS,
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    KV_CACHE_USAGE,
    MAX_ACTIVE_MODELS,
    RUNNING_REQUESTS_SIZE,
    WAITING_MODELS,
    WAITING_QUEUE_SIZE,
    AttributeMap,
)
from shared.config import Invalid, LoadedConfig, load
from shared.model import ROLE, Endpoint
from shared.plugin import Registry
from tests.unit.services.collector.pages import recorded_vllm_page
from tests.unit.services.picker.world import NOW, pool, report, request

FIXTURES = os.environ.get("POINTSMAN_FIXTURES", "")
REGISTRY = Registry.installed()
READ = (
    *(WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE, CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS),
    *(MAX_ACTIVE_MODELS, ACTIVE_MODELS, WAITING_MODELS),
)
ROLES = ("encode", "prefill", "prefill", "decode", "decode")


def loadable() -> list[tuple[str, LoadedConfig]]:
    if not FIXTURES:
        return []
    folder = Path(FIXTURES) / "configs"
    with (folder / "INDEX.tsv").open(encoding="utf-8", newline="") as lines:
        files = [row[0] for row in list(csv.reader(lines, delimiter="\t"))[1:] if row[1] != "error"]
    found: list[tuple[str, LoadedConfig]] = []
    for file in files:
        try:
            config = load((folder / file).read_text(encoding="utf-8"), REGISTRY, file, allow_experimental=True)
        except Invalid:
            continue
        found.append((file, config))
    return found


LOAD = [(0, 0, 0.0, ""), (3, 12, 0.41, "ad"), (0, 4, 0.12, ""), (1, 8, 0.3, "ad,other"), (7, 16, 0.87, "")]
"""Waiting, running, share of the cache and adapters of each server."""


def metrics(waiting: int, running: int, usage: float, adapters: str) -> AttributeMap:
    """What a collector reads from the recorded page of an idle vLLM under this load."""
    page = recorded_vllm_page()
    gauges = {b"num_requests_waiting": waiting, b"num_requests_running": running, b"kv_cache_usage_perc": usage}
    for name, value in gauges.items():
        page, count = re.subn(rb"(?m)^(vllm:%b\{.*\}) .*$" % name, rb"\g<1> %b" % str(value).encode(), page)
        assert count == 1, name
    line = b"# TYPE vllm:lora_requests_info gauge\n"
    sample = b'vllm:lora_requests_info{max_lora="4",running_lora_adapters="%b",waiting_lora_adapters=""} 1.7e9\n'
    binding, attributes = (
        CoreMetricsExtractor("core").bind(Endpoint(id="a", name="a", address="a", port=1)),
        AttributeMap(),
    )
    asyncio.run(MetricsReader([binding]).read(page.replace(line, line + sample % adapters.encode()), 0.0))
    binding.store(attributes, 0.0)
    return attributes


def servers() -> View:
    """Five servers with what a recorded page of vLLM says under some load."""
    members = [
        Endpoint(id=f"ns/a{at}", name=f"a{at}", address=f"10.0.0.{at}", port=8000, labels={ROLE: role, "role": role})
        for at, role in enumerate(ROLES)
    ]
    view = pool(*members)
    found = [metrics(*load) for load in LOAD]
    report(view, {key: [attributes.get(key) for attributes in found] for key in READ}, ages=0.05)
    for at in range(5):
        view.made(f"ns/a{at}").put(TOPOLOGY, Topology(f"h{at % 2}", "r", "z", "g"), ALWAYS)
    return view


@pytest.mark.parametrize(("file", "config"), loadable(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_published_configuration_decides(file: str, config: LoadedConfig) -> None:
    view = servers()
    director = build(config, np.random.default_rng(1), lambda: 0.0).director
    for number in range(6):
        asked = request(b"x" * 20_000, id=f"r{number}", multimodal=number % 2 == 0, headers=[("session-id", "s")])
        decision = director.decide(asked, view, NOW)
        assert isinstance(decision.outcome, Route), (file, decision.outcome)
        assert not decision.failures
        assert decision.explain()["profiles"]
        for role, charge in decision.roles.items():
            assert ROLES[charge.row] == role
            assert charge.row != decision.picked[0]
    if {"prefill", "decode"} <= {profile.name for profile in config.profiles}:
        assert ROLES[decision.picked[0]] == "decode"
