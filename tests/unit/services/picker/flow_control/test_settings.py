from typing import Any

import msgspec
import pytest

from services.picker.flow_control.settings import FlowControlSettings, resolve
from services.picker.flow_control.usage_limits.static import StaticUsageLimitPolicy
from shared.config.schema import FlowControlSection
from shared.plugin import Plugin
from tests.unit.services.picker.flow_control.flows import FAIRNESS, ORDERINGS

PLUGINS: dict[str, Plugin] = {
    **{name: kind(name) for name, kind in ORDERINGS.items()},
    **{name: kind(name) for name, kind in FAIRNESS.items()},
    "static-usage-limit-policy": StaticUsageLimitPolicy("static-usage-limit-policy"),
    "half": StaticUsageLimitPolicy("half"),
}


def settled(raw: dict[str, Any], weights: dict[str, float] | None = None) -> FlowControlSettings:
    return resolve(msgspec.convert(raw, FlowControlSection), PLUGINS.__getitem__, weights)


def test_defaults() -> None:
    made = settled({})
    for priority in (0, 100, -1):
        found = made.band(priority)
        assert (found.max_requests, found.max_bytes) == (5000, 10**9)
        assert (found.ordering.name, found.fairness.name) == ("fcfs-ordering-policy", "global-strict-fairness-policy")
    assert (made.ttl, made.no_endpoint_ttl, made.max_requests, made.max_bytes) == (60.0, 60.0, 0, 0)
    assert made.usage_limits.name == "static-usage-limit-policy"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"defaultRequestTTL": 30.0}, (30.0, 30.0)),
        ({"defaultRequestTTL": 0.0}, (0.0, 0.0)),
        ({"noEndpointRequestTTL": 300.0}, (60.0, 300.0)),
        ({"defaultRequestTTL": 30.0, "noEndpointRequestTTL": 0.0}, (30.0, 0.0)),
    ],
)
def test_the_time_to_live_of_an_empty_pool_follows_the_other(
    raw: dict[str, Any], expected: tuple[float, float]
) -> None:
    made = settled(raw)
    assert (made.ttl, made.no_endpoint_ttl) == expected


def test_bands_and_templates() -> None:
    made = settled(
        {
            "maxRequests": 9,
            "maxBytes": 1024,
            "usageLimitPolicyPluginRef": "half",
            "priorityBands": [
                {"priority": 7, "maxRequests": 3, "fairnessPolicyRef": "round-robin-fairness-policy"},
                {"priority": 5, "maxRequests": 0, "maxBytes": 0, "orderingPolicyRef": "edf-ordering-policy"},
            ],
            "defaultPriorityBand": {"maxRequests": 2},
            "defaultNegativePriorityBand": {"maxBytes": 1},
        }
    )
    assert (made.max_requests, made.max_bytes, made.usage_limits.name) == (9, 1024, "half")
    found = {priority: made.band(priority) for priority in (7, 5, 0, -1)}
    assert {priority: (one.max_requests, one.max_bytes) for priority, one in found.items()} == {
        7: (3, 10**9),
        5: (5000, 10**9),  # 0 is the default, never without limit
        0: (2, 10**9),
        -1: (5000, 1),
    }
    assert found[7].fairness.name == "round-robin-fairness-policy"
    assert found[5].ordering.name == "edf-ordering-policy"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"priorityBands": [{}]}, r"priorityBands\[0\]\.priority: a number is needed"),
        ({"priorityBands": [{"priority": 1}, {"priority": 1}]}, r"priorityBands\[1\]\.priority: there is another"),
        ({"priorityBands": [{"priority": 2**31}]}, r"priorityBands\[0\]\.priority: 2147483648 has more than 32 bits"),
        (
            {"priorityBands": [{"priority": 1, "orderingPolicyRef": "nobody"}]},
            r"flowControl\.priorityBands\[0\]\.orderingPolicyRef: there is no plugin 'nobody'",
        ),
        ({"defaultPriorityBand": {"fairnessPolicyRef": "half"}}, "'half' is no FairnessPolicy"),
        ({"usageLimitPolicyPluginRef": "edf-ordering-policy"}, "is no UsageLimitPolicy"),
    ],
)
def test_a_section_that_cannot_be_used_is_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settled(raw)


@pytest.mark.parametrize("weight", [0.0, -1.0, 1e-9, 1e9, float("nan"), float("inf")])
def test_absurd_weights_are_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="the weight of flow 'a'"):
        settled({}, {"a": weight})
