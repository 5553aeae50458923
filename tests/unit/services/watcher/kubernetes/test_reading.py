"""What a resource comes to for a pool."""

from typing import Any

import pytest

from services.watcher.kubernetes import reading as module
from services.watcher.kubernetes.reading import read_item
from services.watcher.kubernetes.resource import JsonObject
from services.watcher.resources import PoolId
from services.watcher.sources import Rejected, Reset
from shared.model import Objective
from tests.unit.services.watcher.kubernetes.readings import EXPERIMENTAL, LLAMA, STABLE, item_of, objective, pool


def read(item: JsonObject, served: PoolId = LLAMA) -> Reset | Rejected | str:
    return read_item(item, item["kind"], "origin", served)


def problems(item: JsonObject) -> list[str]:
    found = read(item)
    assert isinstance(found, Rejected)
    return [str(problem) for problem in found.problems]


OTHER = "for pool 'other', and default/llama is served"
GONE = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
EMPTY = "spec.targetPorts: empty; the port at which the model servers serve is needed"


@pytest.mark.parametrize(
    ("item", "found"),
    [
        (objective(pool="other"), OTHER),
        (objective(pool="other", priority="high"), OTHER),
        (objective(**GONE), "it is being deleted"),
        (pool("other", x="1"), "default/llama is served"),
        (item_of("InferencePool", "llama", {"selector": {"matchLabels": {}}, "targetPorts": []}, STABLE), [EMPTY]),
    ],
    ids=["another's", "another's, however bad it is", "being deleted", "another pool", "a pool without ports"],
)
def test_what_is_for_others_is_left_out_with_the_reason_and_what_is_bad_is_refused(
    item: JsonObject, found: str | list[str]
) -> None:
    assert (read(item) if isinstance(found, str) else problems(item)) == found


@pytest.mark.parametrize("spec", [{}, {"poolRef": 1}, {"poolRef": {"name": 7}}], ids=str)
def test_what_says_no_pool_is_refused_rather_than_left_out(spec: dict[str, Any]) -> None:
    assert any(problem.startswith("spec.poolRef") for problem in problems(item_of("InferenceObjective", "bad", spec)))


@pytest.mark.parametrize(
    ("group", "groups", "ours"),
    [
        (None, {STABLE}, True),
        (None, {EXPERIMENTAL}, False),
        (STABLE, {STABLE}, True),
        (STABLE, {STABLE, EXPERIMENTAL}, True),
        (EXPERIMENTAL, {STABLE}, False),
        (EXPERIMENTAL, {EXPERIMENTAL}, True),
        (EXPERIMENTAL, set(), True),
    ],
)
def test_what_refers_to_a_pool_of_the_name_is_for_it_if_the_group_is_one_of_its_own(
    group: str | None, groups: set[str], ours: bool
) -> None:
    reference = {"name": "llama"} | ({"group": group} if group else {})
    item = item_of("InferenceObjective", "premium", {"poolRef": reference, "priority": 1})
    found = read_item(item, "InferenceObjective", "origin", LLAMA, groups)
    if ours:
        assert isinstance(found, Reset)
        assert found.documents.resources == (Objective(name="premium", priority=1),)
    else:
        assert found == f"for pool 'llama' of {group or STABLE}, and default/llama is served"
    spec = {"poolRef": reference, "modelName": "chat"}
    model = read_item(item_of("InferenceModel", "chat", spec), "InferenceModel", "origin", LLAMA, groups)
    assert isinstance(model, Reset), "of models the group doesn't count, which their definition fills in"


def test_a_resource_that_nobody_foresaw_is_refused_like_any_other_bad_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr(module, "read_resource", fail)
    assert problems(objective()) == ["document: it can't be read: RuntimeError: surprise"]
