"""Plugins of the picker read only attributes that they declare: what nobody declares isn't produced."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from services.picker.scheduling.cycle import IN_FLIGHT_LOAD, PREFIX_MATCH, Cycle, PrefixMatch
from services.picker.scheduling.interfaces import Filter, Picker, Producer, SaturationDetector, Scorer
from services.picker.state.columns import Columns
from services.picker.state.inflight import InFlight
from shared.attributes import AttributeKey
from shared.config import load
from shared.plugin import Plugin, Registry, Role, Tier
from tests.unit.services.picker.world import NOW, pool, request

REGISTRY = Registry.installed()
ROLES = {Role.FILTER, Role.SCORER, Role.PICKER, Role.DATA_PRODUCER, Role.SATURATION_DETECTOR}
TYPES = sorted(kind.TYPE for kind in REGISTRY if kind.runs_in(Tier.PICKER) and kind.ROLES & ROLES)
PARAMETERS = {
    "by-label": "{label: role, validValues: [decode]}",
    "header-label-affinity-scorer": "{headerName: x-tier, labelKey: role}",
    "session-id-producer": "{headerName: x-session-id}",
    "decision-tree-filter": "{current: {pluginRef: all}}",
    "label-selector-filter": "{matchLabels: {role: decode}}",
    "endpoint-attribute-filter": "{attribute: KVCacheUsagePercent, "
    "algorithm: {type: threshold, threshold: {operator: LessThan, value: 1}}}",
    "endpoint-attribute-scorer": "{attributeKey: KVCacheUsagePercent, algorithm: {type: linear_lower_is_better}}",
    "utilization-filter": "{conditions: "
    "[{metric: waiting-queue, maxValue: 1}, {metric: active-requests, maxValue: 1}]}",
    "metric-scorer": "{metricName: WaitingQueueSize, min: 0, max: 9}",
}


class Spy:
    """Notes which attributes a plugin reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: set[str] = set()
        self._watch(monkeypatch, Columns, "numbers", lambda wire: wire)
        self._watch(monkeypatch, Columns, "objects", lambda key: key.wire)
        self._watch(monkeypatch, Cycle, "get", lambda key: key.wire)
        for field in ("requests", "tokens", "at_sample"):
            self._watch_field(monkeypatch, field)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, of: Callable[[Any], str]) -> None:
        method = getattr(owner, name)

        def watched(each: Any, key: Any) -> Any:
            self.read.add(of(key))
            return method(each, key)

        monkeypatch.setattr(owner, name, watched)

    def _watch_field(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        def get(load: InFlight) -> Any:
            self.read.add(IN_FLIGHT_LOAD.wire)
            return vars(load)[name]

        monkeypatch.setattr(InFlight, name, property(get, lambda load, value: vars(load).update({name: value})), False)


def declared(plugin: Plugin) -> set[str]:
    found: set[str] = set()
    for each in plugin.consumes(plugin.parameters):
        key = each if isinstance(each, AttributeKey) else each.key or plugin.inputs[each.parameter]
        found.add(key.wire)
    return found | {key.wire for key in plugin.produces(plugin.name, plugin.parameters)}


@pytest.mark.parametrize("kind", TYPES)
def test_a_plugin_reads_only_what_it_declares(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"
        f"- {{name: it, type: {kind}, parameters: {PARAMETERS.get(kind, '{}')}}}\n- {{type: models-data-extractor}}\n"
        "- {name: all, type: label-selector-filter}\n"
    )
    config = load(text, REGISTRY, allow_experimental=True)
    plugin = config.instances(Tier.PICKER)["it"]
    view = pool("a1", "a2", "a3")
    cycle = Cycle(
        request(b"x" * 4000),
        view,
        NOW,
        np.random.default_rng(1),
        config.stale_metrics,
        model="m",
        candidates=view.layout.all_rows,
    )
    cycle.put(PREFIX_MATCH, PrefixMatch(np.zeros(3), 10, 64))
    spy, rows = Spy(monkeypatch), view.layout.all_rows
    if isinstance(plugin, Producer):
        plugin.produce(cycle)
        plugin.picked(cycle, 0)
        if hasattr(plugin, "tokens"):
            plugin.tokens(cycle, 0)
    if isinstance(plugin, Filter):
        plugin.filter(cycle, rows)
    if isinstance(plugin, Scorer):
        plugin.score(cycle, rows)
    if isinstance(plugin, Picker):
        plugin.pick(cycle, rows, np.zeros(3))
    if isinstance(plugin, SaturationDetector):
        plugin.saturation(cycle, rows)
        plugin.room(cycle, rows, 1.0, 100.0)
    own = {wire for wire in spy.read if wire.startswith("PromptBlocks/")}
    assert spy.read - own <= declared(plugin)
