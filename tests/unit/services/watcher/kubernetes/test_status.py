"""What is applied as a condition."""

import copy
from typing import Any

import pytest

from services.watcher.kubernetes.reports import Condition
from services.watcher.kubernetes.resource import JsonObject, Resource
from services.watcher.kubernetes.status import (
    FIELD_MANAGER,
    MAX_MESSAGE,
    accepted_of,
    body_of,
    strip,
    takes_conditions,
)
from shared.datalayer.objects import ObjectKind
from tests.unit.services.watcher.kubernetes.readings import objective, resource_of

NOW, EARLIER = "2026-11-21T12:00:00Z", "2026-01-01T00:00:00Z"
YES = Condition(True, "Accepted", "in force")
NO = Condition(False, "Invalid", "spec.priority: 'high' isn't a number")
OURS = [{"manager": FIELD_MANAGER, "subresource": "status", "operation": "Apply", "fieldsV1": {"f:status": {}}}]


def there(condition: JsonObject | None = None, **metadata: Any) -> JsonObject:
    """An objective with that condition beside another one."""
    other = {"type": "Ready", "status": "Unknown"}
    return {**objective(**metadata), "status": {"conditions": [other, *([condition] if condition else [])]}}


def written(condition: Condition, item: JsonObject, now: str = EARLIER) -> JsonObject:
    """What would be applied there."""
    body = body_of(item, condition, now)
    assert body is not None
    [found] = body["status"]["conditions"]
    made: JsonObject = found
    return made


def test_only_the_condition_is_applied_to_that_very_object() -> None:
    body = body_of(objective(), YES, NOW)
    assert body == {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
        "kind": "InferenceObjective",
        "metadata": {"name": "premium", "namespace": "default", "uid": "uid of premium"},
        "status": {
            "conditions": [
                {
                    "type": "Accepted",
                    "status": "True",
                    "reason": "Accepted",
                    "message": "in force",
                    "observedGeneration": 1,
                    "lastTransitionTime": NOW,
                }
            ]
        },
    }


@pytest.mark.parametrize(
    ("former", "condition", "generation", "since"),
    [
        (YES, YES, 2, EARLIER),
        (NO, Condition(False, "PoolNotFound", "spec.poolRef.name"), 1, EARLIER),
        (NO, YES, 1, NOW),
    ],
    ids=["another generation", "another reason", "another status"],
)
def test_another_status_alone_is_a_transition(
    former: Condition, condition: Condition, generation: int, since: str
) -> None:
    again = written(condition, there(written(former, objective()), generation=generation), NOW)
    assert (again["observedGeneration"], again["lastTransitionTime"]) == (generation, since)


def test_a_long_message_is_cut() -> None:
    message = written(Condition(False, "Invalid", "x" * 100_000), objective())["message"]
    assert len(message) == MAX_MESSAGE
    assert message.endswith("…")


@pytest.mark.parametrize(
    ("item", "condition", "applied"),
    [
        (there(written(YES, objective())), YES, None),
        (there(written(YES, objective()), generation=2, managedFields=OURS), None, []),
        (there(written(YES, objective()), managedFields=OURS), None, None),
        (there(written(YES, objective()), generation=2), None, None),
        (objective(generation=2, managedFields=OURS), None, None),
    ],
    ids=["there already", "ours of an earlier generation", "of this one: the new pool's", "somebody else's", "none"],
)
def test_only_our_own_condition_of_an_earlier_generation_is_taken_back(
    item: JsonObject, condition: Condition | None, applied: list[JsonObject] | None
) -> None:
    body = body_of(item, condition, NOW)
    assert (body and body["status"]["conditions"]) == applied


MALFORMED: tuple[Any, ...] = (
    *("x", 5, True, ["x"]),
    *({"conditions": odd} for odd in ("x", 5, True, {"a": 1}, [5], [None], [["x"]])),
)


@pytest.mark.parametrize("status", MALFORMED, ids=str)
def test_a_malformed_status_has_no_condition(status: object) -> None:
    assert accepted_of({**objective(), "status": status}) is None
    assert body_of({**objective(), "status": status}, YES, NOW) == body_of(objective(), YES, NOW)


@pytest.mark.parametrize("odd", [["x"], {"a": 1}, 1.5], ids=str)
def test_a_malformed_generation_or_time_counts_as_none(odd: object) -> None:
    former = written(NO, objective())
    assert body_of(there({**former, "observedGeneration": odd}, managedFields=OURS), None, NOW) is not None
    assert body_of(there(former, generation=odd, managedFields=OURS), None, NOW) is None
    assert "observedGeneration" not in written(NO, objective(generation=odd))
    other = {**former, "reason": "PoolNotFound", "lastTransitionTime": odd}
    assert written(NO, there(other), NOW)["lastTransitionTime"] == NOW


@pytest.mark.parametrize("odd", ["x", 5, ["x"], [None], [["x"]]], ids=str)
def test_malformed_managed_fields_are_dropped(odd: object) -> None:
    kept = strip(objective(managedFields=odd), resource_of("InferenceObjective"))
    assert "managedFields" not in kept["metadata"]


def test_of_managed_fields_only_whether_some_are_ours_is_kept() -> None:
    other = {"manager": "kubectl", "subresource": "status", "operation": "Update", "fieldsV1": {"f:status": {}}}
    resource = resource_of("InferenceObjective")
    mine = strip(copy.deepcopy(objective(managedFields=[other, *OURS])), resource)
    assert mine["metadata"]["managedFields"] == [{"manager": FIELD_MANAGER, "subresource": "status"}]
    theirs = strip(copy.deepcopy(objective(managedFields=[other, {"manager": FIELD_MANAGER}])), resource)
    assert "managedFields" not in theirs["metadata"]


def test_conditions_go_only_where_the_api_has_a_place_for_them() -> None:
    assert takes_conditions(resource_of("InferenceModel"))
    assert not takes_conditions(resource_of("InferencePool"))
    without_status = Resource(ObjectKind("llm-d.ai", "v1alpha2", "InferenceObjective"), "inferenceobjectives", True)
    assert not takes_conditions(without_status)
