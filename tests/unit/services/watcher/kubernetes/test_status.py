"""What is applied as a condition."""

import copy
from typing import Any

from services.watcher.kubernetes.resource import JsonObject, Resource
from services.watcher.kubernetes.status import (
    FIELD_MANAGER,
    LONGEST_MESSAGE,
    arrive,
    body_of,
    takes_conditions,
)
from services.watcher.kubernetes.verdicts import Condition
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


def test_what_is_there_already_is_not_written_again() -> None:
    item = there(written(YES, objective()))
    assert body_of(item, YES, NOW) is None


def test_a_new_generation_is_written_with_the_time_of_the_last_transition() -> None:
    item = there(written(YES, objective()), generation=2)
    again = written(YES, item, NOW)
    assert (again["observedGeneration"], again["lastTransitionTime"]) == (2, EARLIER)


def test_another_reason_is_no_transition_and_another_status_is() -> None:
    item = there(written(NO, objective()))
    other = written(Condition(False, "PoolNotFound", "spec.poolRef.name"), item, NOW)
    assert other["lastTransitionTime"] == EARLIER
    assert written(YES, item, NOW)["lastTransitionTime"] == NOW


def test_a_long_message_is_cut() -> None:
    message = written(Condition(False, "Invalid", "x" * 100_000), objective())["message"]
    assert len(message) == LONGEST_MESSAGE
    assert message.endswith("…")


def test_our_condition_of_an_earlier_generation_is_taken_back() -> None:
    item = there(written(YES, objective()), generation=2, managedFields=OURS)
    body = body_of(item, None, NOW)
    assert body is not None
    assert body["status"] == {"conditions": []}


def test_no_other_condition_is_taken_back() -> None:
    """One of this generation the watcher of the resource's new pool has written, by the same name."""
    ours = written(YES, objective())
    assert body_of(there(ours, managedFields=OURS), None, NOW) is None, "of this generation"
    assert body_of(there(ours, generation=2), None, NOW) is None, "somebody else's"
    assert body_of(objective(generation=2, managedFields=OURS), None, NOW) is None, "there is none"


def test_of_managed_fields_only_whether_some_are_ours_is_kept() -> None:
    other = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}}
    resource = resource_of("InferenceObjective")
    mine = arrive(copy.deepcopy(objective(managedFields=[other, *OURS])), resource)
    assert mine["metadata"]["managedFields"] == [{"manager": FIELD_MANAGER, "subresource": "status"}]
    theirs = arrive(copy.deepcopy(objective(managedFields=[other])), resource)
    assert "managedFields" not in theirs["metadata"]


def test_conditions_go_only_where_the_api_has_a_place_for_them() -> None:
    assert takes_conditions(resource_of("InferenceModel"))
    assert not takes_conditions(resource_of("InferencePool"))
    without_status = Resource(ObjectKind("llm-d.ai", "v1alpha2", "InferenceObjective"), "inferenceobjectives", True)
    assert not takes_conditions(without_status)
