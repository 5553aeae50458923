"""Every installed filter, scorer and picker on the edges: no endpoint, one, all alike, inputs that are absent, stale,
or NaN. The values of the formulas are in the tables of each plugin's own test."""

from typing import Any

import numpy as np
import pytest

from services.picker.scheduling.cycle import PREFIX_MATCH, Cycle, PrefixMatch
from services.picker.scheduling.interfaces import Filter, Picker, Scorer
from services.picker.state.view import View
from shared.attributes import (
    ACTIVE_MODELS,
    KV_CACHE_USAGE,
    MAX_ACTIVE_MODELS,
    RUNNING_REQUESTS_SIZE,
    SERVED_MODELS,
    WAITING_MODELS,
    WAITING_QUEUE_SIZE,
)
from shared.config import load
from shared.plugin import Plugin, Registry, Role, Tier
from tests.unit.services.picker.scheduling.test_declared_inputs import PARAMETERS
from tests.unit.services.picker.world import NOW, cycle, endpoint, pool, report, request

REGISTRY = Registry.installed()


def having(role: Role) -> list[str]:
    return sorted(kind.TYPE for kind in REGISTRY if kind.runs_in(Tier.PICKER) and role in kind.ROLES)


SCORERS, FILTERS, PICKERS = having(Role.SCORER), having(Role.FILTER), having(Role.PICKER)
SIZES = {"no endpoint": 0, "one endpoint": 1, "several": 5}
NUMBERS = (WAITING_QUEUE_SIZE, KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, MAX_ACTIVE_MODELS)
NAMES = (ACTIVE_MODELS, WAITING_MODELS, SERVED_MODELS)
RANKING = {"no-hit-lru-scorer"}
"""Puts endpoints in an order that has nothing to do with what they report."""
STATES = ("alike", "absent", "stale", "some absent", "some stale")


def made(kind: str) -> Any:
    document = (
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"
        f"- {{name: it, type: {kind}, parameters: {PARAMETERS.get(kind, '{}')}}}\n- {{type: models-data-extractor}}\n"
        "- {name: all, type: label-selector-filter}\n"
    )
    plugin: Plugin = load(document, REGISTRY, allow_experimental=True).instances(Tier.PICKER)["it"]
    return plugin


def on(size: int, state: str, policy: str) -> Cycle:
    """A cycle on endpoints that are all the same, but for inputs that are absent or stale."""
    view: View = pool(*(endpoint(f"a{at}", address=f"10.0.0.{at}", role="decode") for at in range(size)))
    if state != "absent" and size:
        some = state.startswith("some")
        hidden = [state == "some absent" and at % 2 == 1 for at in range(size)]
        old = [("stale" in state) and (not some or at % 2 == 1) for at in range(size)]
        values: dict[Any, list[Any]] = {key: [None if none else 0.5 for none in hidden] for key in NUMBERS}
        values |= {key: [None if none else ["m"] for none in hidden] for key in NAMES}
        report(view, values, [60.0 if each else 0.0 for each in old])
    run = cycle(view, request(b"x" * 4000), model="m", now=NOW, policy=policy)
    if state != "absent":
        run.put(PREFIX_MATCH, PrefixMatch(np.full(size, 5.0), 10, 64))
    return run


@pytest.mark.parametrize("policy", ["saturated", "ignore", "lastKnown"])
@pytest.mark.parametrize("kind", SCORERS)
def test_scores_are_numbers_from_0_to_1_and_alike_for_what_is_alike(kind: str, policy: str) -> None:
    plugin = made(kind)
    assert isinstance(plugin, Scorer)
    for size in SIZES.values():
        for state in STATES:
            run = on(size, state, policy)
            for rows in (run.candidates, run.candidates.copy(), run.candidates[:0]):
                scores = plugin.score(run, rows)
                assert scores.shape == (len(rows),), (size, state)
                assert ((scores >= 0.0) & (scores <= 1.0)).all(), (size, state, scores)
                if not state.startswith("some") and len(rows) and kind not in RANKING:
                    assert scores.min() == scores.max(), (size, state, scores)
            assert not run.failures


@pytest.mark.parametrize("policy", ["saturated", "ignore", "lastKnown"])
@pytest.mark.parametrize("kind", FILTERS)
def test_filters_keep_some_of_what_they_are_given_and_all_or_none_of_what_is_alike(kind: str, policy: str) -> None:
    plugin = made(kind)
    assert isinstance(plugin, Filter)
    for size in SIZES.values():
        for state in STATES:
            run = on(size, state, policy)
            for rows in (run.candidates, run.candidates[::-1].copy(), run.candidates[:0]):
                kept = plugin.filter(run, rows).tolist()
                assert kept == [row for row in rows.tolist() if row in kept], (size, state)
                if not state.startswith("some"):
                    assert len(kept) in (0, len(rows)), (size, state, kept)


@pytest.mark.parametrize("kind", PICKERS)
@pytest.mark.parametrize("total", [0.0, 1.0, -3.0, 1e300, 1e-300])
def test_pickers_choose_a_candidate_whatever_the_totals(kind: str, total: float) -> None:
    plugin = made(kind)
    assert isinstance(plugin, Picker)
    for size in (1, 2, 5):
        run = on(size, "alike", "saturated")
        totals = np.full(size, total)
        totals.setflags(write=False)
        picked = plugin.pick(run, run.candidates, totals)
        assert len(picked) == 1
        assert picked[0] in run.candidates


@pytest.mark.parametrize("kind", [*SCORERS, *FILTERS])
def test_a_prompt_without_blocks_and_one_that_no_cache_has(kind: str) -> None:
    plugin = made(kind)
    for match in (PrefixMatch(np.zeros(3), 0, 64), PrefixMatch(np.zeros(3), 9, 64)):
        run = on(3, "alike", "saturated")
        run.put(PREFIX_MATCH, match)
        if isinstance(plugin, Scorer):
            scores = plugin.score(run, run.candidates)
            assert ((scores >= 0.0) & (scores <= 1.0)).all()
        if isinstance(plugin, Filter):
            assert len(plugin.filter(run, run.candidates)) in (0, 3)
