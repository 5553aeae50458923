"""Names and paths of resources, and what a selection asks for."""

import pytest

from services.watcher.kubernetes.resource import Resource, Selection, select_parts, tidy
from shared.datalayer.objects import ObjectKind

PODS = Resource(ObjectKind("", "v1", "Pod"), "pods", True)
NODES = Resource(ObjectKind("", "v1", "Node"), "nodes", False)
POOLS = Resource(ObjectKind("inference.networking.k8s.io", "v1", "InferencePool"), "inferencepools", True)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (PODS.path(), "/api/v1/pods"),
        (PODS.path("default"), "/api/v1/namespaces/default/pods"),
        (PODS.path("default", "a"), "/api/v1/namespaces/default/pods/a"),
        (NODES.path(), "/api/v1/nodes"),
        (NODES.path("default", "n"), "/api/v1/nodes/n"),
        (POOLS.path("x"), "/apis/inference.networking.k8s.io/v1/namespaces/x/inferencepools"),
        (
            POOLS.path("x", "p", "status"),
            "/apis/inference.networking.k8s.io/v1/namespaces/x/inferencepools/p/status",
        ),
        (PODS.path("../..", "a/b?c"), "/api/v1/namespaces/..%2F../pods/a%2Fb%3Fc"),
    ],
)
def test_paths(path: str, expected: str) -> None:
    assert path == expected


def test_a_resource_is_called_as_rbac_errors_call_it() -> None:
    assert [str(PODS), str(POOLS)] == ["pods", "inferencepools.inference.networking.k8s.io"]


def test_a_selection_asks_for_what_it_selects_and_says_so() -> None:
    selection = Selection(PODS, "default", labels="app=vllm", fields="status.phase!=Failed")
    assert selection.parameters == (("labelSelector", "app=vllm"), ("fieldSelector", "status.phase!=Failed"))
    assert str(selection) == "pods in namespace default with app=vllm and status.phase!=Failed"
    assert (Selection(PODS).parameters, str(Selection(PODS))) == ((), "pods")
    assert str(Selection(NODES, "ignored")) == "nodes"


def test_what_is_not_read_is_cut_off_with_the_version_that_changes_with_it() -> None:
    item = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "a", "resourceVersion": "7"},
        "spec": {},
        "status": {},
    }
    assert select_parts(item, None) is item
    alone = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}}
    assert select_parts(item, frozenset({"metadata"})) == alone
    assert select_parts(item, frozenset({"spec", "data"})) == {**alone, "spec": {}}


def test_tidying_drops_managed_fields_and_names_the_kind() -> None:
    item = {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"name": "a", "managedFields": [{}]},
    }
    assert tidy(item, POOLS) == {
        "kind": "InferencePool",
        "apiVersion": "inference.networking.k8s.io/v1",
        "metadata": {"name": "a"},
    }
