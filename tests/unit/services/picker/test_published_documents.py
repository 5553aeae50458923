"""The published configurations that load also run: each decides on requests, and no plugin of it fails."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest

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
)
from shared.config import Invalid, LoadedConfig, load
from shared.model import ROLE, Endpoint
from shared.plugin import Registry
from tests.unit.services.picker.world import NOW, pool, report, request

FIXTURES = os.environ.get("POINTSMAN_FIXTURES", "")
REGISTRY = Registry.installed()
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


def servers() -> View:
    """Five servers with what vLLM's page reports under some load."""
    members = [
        Endpoint(id=f"ns/a{at}", name=f"a{at}", address=f"10.0.0.{at}", port=8000, labels={ROLE: role, "role": role})
        for at, role in enumerate(ROLES)
    ]
    view = pool(*members)
    report(
        view,
        {
            WAITING_QUEUE_SIZE: [0, 3, 0, 1, 7],
            RUNNING_REQUESTS_SIZE: [0, 12, 4, 8, 16],
            KV_CACHE_USAGE: [0.0, 0.41, 0.12, 0.3, 0.87],
            CACHE_BLOCK_SIZE: [16] * 5,
            CACHE_NUM_BLOCKS: [27_000] * 5,
            MAX_ACTIVE_MODELS: [4] * 5,
            ACTIVE_MODELS: [[], ["ad"], [], ["ad", "other"], []],
            WAITING_MODELS: [[]] * 5,
        },
        ages=0.05,
    )
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
