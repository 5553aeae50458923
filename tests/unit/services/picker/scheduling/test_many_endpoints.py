"""Filters and scorers work on arrays: the number of calls that they make doesn't grow with the number of endpoints."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from services.picker.scheduling.cycle import PREFIX_MATCH, Cycle, PrefixMatch
from services.picker.scheduling.interfaces import Filter, Scorer
from shared.attributes import ACTIVE_MODELS, KV_CACHE_USAGE, SERVED_MODELS, WAITING_MODELS, WAITING_QUEUE_SIZE
from shared.config import load
from shared.plugin import Registry, Role, Tier
from tests.unit.services.picker.scheduling.test_declared_inputs import PARAMETERS
from tests.unit.services.picker.world import NOW, cycle, endpoint, pool, report, request

REGISTRY = Registry.installed()
TYPES = sorted(kind.TYPE for kind in REGISTRY if kind.runs_in(Tier.PICKER) and kind.ROLES & {Role.FILTER, Role.SCORER})


def calls(work: Callable[[], Any]) -> int:
    """The calls of functions, of Python and C, that this makes."""
    count = 0

    def seen(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def on(size: int) -> Cycle:
    labels = ["decode", "prefill", "both"]
    view = pool(
        *(endpoint(f"a{at:04}", address=f"10.0.{at // 250}.{at % 250}", role=labels[at % 3]) for at in range(size))
    )
    names = {key: [["m"] if at % 2 else ["x"] for at in range(size)] for key in (ACTIVE_MODELS, SERVED_MODELS)}
    report(
        view,
        {
            WAITING_QUEUE_SIZE: [at % 7 for at in range(size)],
            KV_CACHE_USAGE: [0.1] * size,
            WAITING_MODELS: [[]] * size,
            **names,
        },
    )
    run = cycle(view, request(b"x" * 4000), model="m", now=NOW)
    run.put(PREFIX_MATCH, PrefixMatch(np.array([float(at % 11) for at in range(size)]), 10, 64))
    return run


@pytest.mark.parametrize("kind", TYPES)
def test_a_plugin_makes_as_many_calls_for_a_thousand_endpoints_as_for_twenty(kind: str) -> None:
    document = (
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"
        f"- {{name: it, type: {kind}, parameters: {PARAMETERS.get(kind, '{}')}}}\n- {{type: models-data-extractor}}\n"
        "- {name: all, type: label-selector-filter}\n"
    )
    config = load(document, REGISTRY, allow_experimental=True)
    made: dict[int, int] = {}
    for size in (20, 1000):
        plugin, run = config.instances(Tier.PICKER)["it"], on(size)
        rows = run.layout.all_rows[: size // 2].copy()

        def work(plugin: Any = plugin, run: Cycle = run, rows: Any = rows) -> None:
            if isinstance(plugin, Filter):
                plugin.filter(run, rows)
            if isinstance(plugin, Scorer):
                plugin.score(run, rows)

        work()  # what is made once for a layout
        made[size] = calls(work)
    assert made[1000] == made[20]
