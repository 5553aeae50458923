"""Documents that switch flow control on: what their sections come to in a picker."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.picker.flow_control.settings import FlowControlSettings
from services.picker.pipeline import build
from shared.config import Invalid, load
from shared.plugin import Registry

FIXTURES = os.environ.get("POINTSMAN_FIXTURES", "")
HEADER = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
GATE = HEADER + "featureGates: [flowControl]\n"
STRICT, FCFS, STATIC = "global-strict-fairness-policy", "fcfs-ordering-policy", "static-usage-limit-policy"
DEFAULTS: dict[str, Any] = {
    "max_requests": 0,
    "max_bytes": 0,
    "ttl": 60.0,
    "no_endpoint_ttl": 60.0,
    "weights": {},
    "usage_limits": STATIC,
    "eviction": None,
    "bands": {0: (STRICT, FCFS, 5000, 10**9), -1: (STRICT, FCFS, 5000, 10**9)},
}


def settings(text: str) -> FlowControlSettings | None:
    config = load(text, Registry.installed(), allow_experimental=True)
    return build(config, np.random.default_rng(1), lambda: 0.0).flow_control


def told(made: FlowControlSettings | None) -> dict[str, Any] | None:
    """The settings in short: bands are those that are configured, and the two templates at 0 and -1."""
    if made is None:
        return None
    bands = {priority: made.band(priority) for priority in (*made.bands, 0, -1)}
    return {
        "max_requests": made.max_requests,
        "max_bytes": made.max_bytes,
        "ttl": made.ttl,
        "no_endpoint_ttl": made.no_endpoint_ttl,
        "weights": made.weights,
        "usage_limits": made.usage_limits.name,
        "eviction": made.eviction and (made.eviction.filter.name, made.eviction.order.name),
        "bands": {
            priority: (band.fairness.name, band.ordering.name, band.max_requests, band.max_bytes)
            for priority, band in bands.items()
        },
    }


EVERYTHING = """\
plugins:
- {type: edf-ordering-policy, name: urgent}
- {type: slo-deadline-ordering-policy}
- {type: round-robin-fairness-policy, name: turns}
- {type: program-aware-fairness, parameters: {lasHalfLifeSeconds: 10}}
- {type: priority-holdback-policy, name: held, parameters: {minCeiling: 0.5}}
- {type: concurrency-detector, parameters: {maxConcurrency: 8}}
flowControl:
  maxBytes: 1Gi
  maxRequests: 2k
  defaultRequestTTL: 30s
  noEndpointRequestTTL: 5m
  usageLimitPolicyPluginRef: held
  saturationDetector: {pluginRef: concurrency-detector}
  enableEviction: true
  flowWeights: {gold: 4, "": 2}
  priorityBands:
  - {priority: 7, maxRequests: 10, maxBytes: 64Mi, orderingPolicyRef: urgent, fairnessPolicyRef: turns}
  defaultPriorityBand: {maxRequests: 0, fairnessPolicyRef: program-aware-fairness}
  defaultNegativePriorityBand: {maxRequests: 5, orderingPolicyRef: slo-deadline-ordering-policy}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEADER, None),
        (HEADER + EVERYTHING, None),  # the gate is off
        (GATE, DEFAULTS),
        (GATE + "flowControl: {defaultRequestTTL: 0s}", {**DEFAULTS, "ttl": 0.0, "no_endpoint_ttl": 0.0}),
        (
            GATE + EVERYTHING,
            {
                "max_requests": 2000,
                "max_bytes": 2**30,
                "ttl": 30.0,
                "no_endpoint_ttl": 300.0,
                "weights": {"gold": 4.0, "default-flow": 2.0},
                "usage_limits": "held",
                "eviction": ("sheddable-eviction-filter", "priority-then-time-eviction-order-policy"),
                "bands": {
                    7: ("turns", "urgent", 10, 64 * 2**20),
                    0: ("program-aware-fairness", FCFS, 5000, 10**9),
                    -1: (STRICT, "slo-deadline-ordering-policy", 5, 10**9),
                },
            },
        ),
    ],
)
def test_what_a_section_comes_to(text: str, expected: dict[str, Any] | None) -> None:
    assert told(settings(text)) == expected


PUBLISHED: dict[str, dict[str, Any] | None] = {
    "deploy__sim-program-aware-config.yaml": {
        **DEFAULTS,
        "bands": dict.fromkeys((0, -1), ("program-aware-fairness", FCFS, 5000, 10**9)),
    },
    "loader__successDeprecatedTopLevelSaturationDetector.yaml": DEFAULTS,
    "loader__successFlowControlConfig.yaml": {**DEFAULTS, "max_bytes": 1024, "no_endpoint_ttl": 300.0},
    "loader__successFlowControlDisabledNoSection.yaml": None,
    "loader__successFlowControlInheritedTTL.yaml": {**DEFAULTS, "ttl": 0.0, "no_endpoint_ttl": 0.0},
    "loader__successflowControlConfigDisabled.yaml": None,
    "runner__gate-flowcontrol-on.yaml": DEFAULTS,
}


@pytest.mark.skipif(not FIXTURES, reason="POINTSMAN_FIXTURES names no documents")
def test_what_published_documents_come_to() -> None:
    found: dict[str, dict[str, Any] | None] = {}
    for path in (Path(FIXTURES) / "configs").glob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        if "flowcontrol" in text.lower():
            try:
                found[path.name] = told(settings(text))
            except Invalid:
                assert "error" in path.name
    assert found == PUBLISHED
