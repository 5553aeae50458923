from typing import Any

import msgspec
import pytest

from services.picker.flow_control.eviction.priority_then_time import PriorityThenTimeEvictionOrderPolicy
from services.picker.flow_control.eviction.sheddable import SheddableEvictionFilter
from services.picker.flow_control.settings import FlowControlSettings, resolve
from services.picker.flow_control.usage_limits.static import StaticUsageLimitPolicy
from shared.config import Invalid
from shared.config.schema import FlowControlSection
from shared.plugin import Plugin, Role
from tests.unit.services.picker.flow_control.flows import FAIRNESS, ORDERINGS


class Hollow(Plugin):
    """Says that it plays roles, and has the class of none."""

    TYPE = "hollow"
    ROLES = frozenset({Role.ORDERING_POLICY, Role.EVICTION_FILTER})


PLUGINS: dict[str, Plugin] = {
    **{name: kind(name) for name, kind in ORDERINGS.items()},
    **{name: kind(name) for name, kind in FAIRNESS.items()},
    "static-usage-limit-policy": StaticUsageLimitPolicy("static-usage-limit-policy"),
    "half": StaticUsageLimitPolicy("half"),
    "sheddable": SheddableEvictionFilter("sheddable"),
    "newest": PriorityThenTimeEvictionOrderPolicy("newest"),
}


def settled(raw: dict[str, Any], **more: Plugin) -> FlowControlSettings:
    return resolve(msgspec.convert(raw, FlowControlSection), {**more, **PLUGINS})


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
    assert {priority: (item.max_requests, item.max_bytes) for priority, item in found.items()} == {
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
        (
            {"priorityBands": [{"priority": 1, "orderingPolicyRef": "hollow"}]},
            "flowControl.priorityBands[0].orderingPolicyRef: 'hollow' implements no OrderingPolicy",
        ),
        (
            {"defaultPriorityBand": {"fairnessPolicyRef": "half"}},
            "flowControl.defaultPriorityBand.fairnessPolicyRef: 'half' implements no FairnessPolicy",
        ),
        (
            {"defaultNegativePriorityBand": {"fairnessPolicyRef": "nobody"}},
            "flowControl.defaultNegativePriorityBand.fairnessPolicyRef: 'nobody' implements no FairnessPolicy",
        ),
        (
            {"usageLimitPolicyPluginRef": "edf-ordering-policy"},
            "flowControl.usageLimitPolicyPluginRef: 'edf-ordering-policy' implements no UsageLimitPolicy",
        ),
        ({"enableEviction": True}, "flowControl.enableEviction: 'hollow' implements no EvictionFilterPolicy"),
    ],
)
def test_a_plugin_without_the_class_of_its_role_is_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid) as caught:
        settled(raw, hollow=Hollow("hollow"))
    assert str(caught.value) == message


@pytest.mark.parametrize(("raw", "expected"), [({}, None), ({"enableEviction": True}, ("sheddable", "newest"))])
def test_eviction_has_the_policies_that_there_are(raw: dict[str, Any], expected: object) -> None:
    eviction = settled(raw).eviction
    assert (eviction and (eviction.filter.name, eviction.order.name)) == expected


def test_weights_are_those_of_flows_as_requests_name_them() -> None:
    made = settled({"flowWeights": {"gold": 4.0, "": 2.0, "long" * 100: 0.5}})
    assert made.weights.keys() >= {"gold", "default-flow"}
    assert max(map(len, made.weights)) <= 256
