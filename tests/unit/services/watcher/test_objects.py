"""Documents of kinds that a notification source wants to hear of."""

from collections.abc import Collection

import pytest

from services.watcher.documents import Documents, read_documents
from services.watcher.resources import PoolId
from shared.config.problems import Problems
from shared.datalayer.objects import NODE, KubernetesObject, ObjectKind

POOLS = ObjectKind("inference.networking.k8s.io", "v1", "InferencePool")
DEPLOYMENTS = ObjectKind("apps", "v1", "Deployment")
OTHER_POOLS = ObjectKind("example.com", "v1", "InferencePool")

NODE_TEXT = """\
apiVersion: v1
kind: Node
metadata:
  name: gpu-1
  creationTimestamp: "2026-08-01T12:00:00Z"
  labels: {kubernetes.io/hostname: gpu-1, nvidia.com/gpu.product: H100}
status:
  allocatable: {nvidia.com/gpu: "8"}
"""


def read(text: str, wanted: Collection[ObjectKind] = (NODE,)) -> Documents:
    problems = Problems()
    documents = read_documents(text, "f", problems, pool=PoolId("default", "default"), object_kinds=wanted)
    assert problems.errors == []
    return documents


def errors(text: str, wanted: Collection[ObjectKind] = (NODE,)) -> list[str]:
    problems = Problems()
    read_documents(text, "f", problems, pool=PoolId("default", "default"), object_kinds=wanted)
    return [str(error) for error in problems.errors]


@pytest.mark.parametrize("wanted", [(), (DEPLOYMENTS,), (ObjectKind("", "v1beta1", "Node"),)])
def test_an_object_that_nobody_wants_is_left_out(wanted: Collection[ObjectKind]) -> None:
    documents = read(NODE_TEXT, wanted)
    assert documents.objects == ()
    assert documents.ignored == ("Node gpu-1: not a kind that an endpoint picker reads",)


def test_group_and_version_tell_kinds_apart() -> None:
    text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: vllm, namespace: prod}\n"
    assert read(text, (DEPLOYMENTS,)).objects == (
        KubernetesObject(
            DEPLOYMENTS,
            "vllm",
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "vllm", "namespace": "prod"}},
            "prod",
        ),
    )
    assert read(text, (ObjectKind("extensions", "v1", "Deployment"),)).objects == ()


def test_a_list_of_any_objects_is_read_as_kubectl_prints_it() -> None:
    text = (
        "apiVersion: v1\nkind: List\nitems:\n"
        "- {apiVersion: v1, kind: Node, metadata: {name: n1}}\n"
        "- {apiVersion: v1, kind: Secret, metadata: {name: s}}\n"
        "- {apiVersion: v1, kind: Node, metadata: {name: n2}}\n"
    )
    documents = read(text)
    assert [each_object.name for each_object in documents.objects] == ["n1", "n2"]
    assert documents.ignored == ("Secret s: not a kind that an endpoint picker reads",)


def test_the_items_of_a_typed_list_are_of_its_kind() -> None:
    text = "apiVersion: v1\nkind: NodeList\nitems:\n- {metadata: {name: n1}}\n- {metadata: {name: n2}}\n"
    found = read(text).objects
    assert [(each.kind, each.name) for each in found] == [(NODE, "n1"), (NODE, "n2")]
    assert found[0].content["kind"] == "Node"
    assert read(text, ()).ignored == ("NodeList : not a kind that an endpoint picker reads",)


def test_a_resource_that_somebody_wants_is_a_resource_none_the_less() -> None:
    text = "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: default}\nspec: {}\n"
    documents = read(text, (POOLS,))
    assert (
        [resource.name for resource in documents.resources]
        == [each_object.name for each_object in documents.objects]
        == ["default"]
    )
    documents = read(text.replace(POOLS.group, "example.com"), (OTHER_POOLS,))
    assert (documents.resources, [each.kind for each in documents.objects]) == ((), [OTHER_POOLS])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("apiVersion: v1\nkind: Node\n", "metadata: required, and missing"),
        ("apiVersion: v1\nkind: Node\nmetadata: gpu-1\n", "metadata: 'gpu-1' isn't a mapping (line 3)"),
        ("apiVersion: v1\nkind: Node\nmetadata: {labels: {}}\n", "metadata.name: required, and missing (line 3)"),
        (
            "apiVersion: v1\nkind: Node\nmetadata: {name: 7}\n",
            "metadata.name: 7 isn't a name; a string is expected (line 3)",
        ),
        (
            "apiVersion: v1\nkind: Node\nmetadata:\n  name: n\n  labels: {gpus: 8}\n",
            "metadata.labels.gpus: 8 isn't a string; put it in quotes (line 5)",
        ),
        (
            "apiVersion: v1\nkind: Node\nmetadata:\n  name: n\n  annotations: [a]\n",
            "metadata.annotations: ['a'] isn't a mapping (line 5)",
        ),
    ],
)
def test_what_an_api_server_wouldnt_take_is_an_error(text: str, expected: str) -> None:
    [error] = errors(text)
    assert error.startswith(expected.split(" (line")[0])
    if "(line" in expected:
        assert error == expected
    assert errors(text, ()) == [], "what nobody reads isn't judged"


def test_a_mistake_in_a_resource_that_somebody_wants_is_told_once() -> None:
    text = "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {}\nspec: {}\n"
    assert [error.split(" (")[0] for error in errors(text, (POOLS,))] == ["metadata.name: required, and missing"]


def test_an_object_that_is_given_twice_is_an_error() -> None:
    [error] = errors(f"{NODE_TEXT}---\n{NODE_TEXT}")
    assert "v1 Node gpu-1 is given twice" in error
    in_two = "".join(
        f"---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: a, namespace: {each}}}\n" for each in "xy"
    )
    assert errors(in_two, (DEPLOYMENTS,)) == []
