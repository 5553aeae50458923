"""When a pod is an endpoint, which ones, and what is known of them."""

from typing import Any

import pytest

from services.watcher.kubernetes.pods import (
    active_ports,
    address_of,
    arrive,
    endpoints_of,
    is_ready,
    selector_text,
)
from services.watcher.kubernetes.settings import IpFamily
from shared.model import Endpoint, Pool
from tests.fake_kubernetes.cluster import PODS

POOL = Pool(name="llama", selector={"app": "vllm"}, target_ports=(8000,))
RANKS = Pool(name="llama", selector={"app": "vllm"}, target_ports=(8000, 8001, 8002))


def pod(
    name: str = "a", *ips: str, ready: str = "True", phase: str = "Running", annotations: Any = None, **metadata: Any
) -> dict[str, Any]:
    """A pod as the API server has it."""
    addresses = ips or ("10.0.0.1",)
    return {
        "metadata": {
            "name": name,
            "namespace": "serving",
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "labels": {"app": "vllm"},
            "annotations": annotations,
            "managedFields": [{"manager": "kubelet"}],
            "ownerReferences": [{"kind": "ReplicaSet", "name": "vllm"}],
            **metadata,
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "vllm", "env": [{"name": "A", "value": "B"}]}]},
        "status": {
            "phase": phase,
            "podIP": addresses[0],
            "podIPs": [{"ip": ip} for ip in addresses],
            "hostIP": "192.168.0.1",
            "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": ready}],
            "containerStatuses": [{"name": "vllm", "ready": True}],
        },
    }


def ids(found: tuple[Endpoint, ...]) -> list[str]:
    return [one.id for one in found]


def test_a_ready_pod_is_an_endpoint_with_all_that_is_known_of_it() -> None:
    assert endpoints_of(pod(), POOL) == (
        Endpoint(
            id="serving/a-rank-0",
            name="a-rank-0",
            namespace="serving",
            address="10.0.0.1",
            port=8000,
            labels={"app": "vllm"},
            rank=0,
            node="n1",
            node_address="192.168.0.1",
            uid="uid-a",
        ),
    )


@pytest.mark.parametrize(
    "unable",
    [
        pod(ready="False"),
        pod(ready="Unknown"),
        pod(deletionTimestamp="2026-08-01T12:00:00Z"),
        pod(phase="Succeeded"),
        pod(phase="Failed"),
        {**pod(), "status": {"phase": "Running", "podIP": "10.0.0.1"}},
        {**pod(), "status": {}},
        {**pod(), "status": None},
    ],
    ids=["not ready", "unknown", "terminating", "succeeded", "failed", "no conditions", "no status", "null status"],
)
def test_a_pod_that_cannot_take_requests_is_none(unable: dict[str, Any]) -> None:
    assert not is_ready(unable)
    assert endpoints_of(unable, POOL) == ()


def test_a_ready_pod_without_an_address_is_none() -> None:
    known = pod()
    del known["status"]["podIP"]
    assert endpoints_of(known, POOL) == ()


def test_each_target_port_is_a_rank() -> None:
    found = endpoints_of(pod(), RANKS)
    assert [(one.id, one.port, one.rank) for one in found] == [
        ("serving/a-rank-0", 8000, 0),
        ("serving/a-rank-1", 8001, 1),
        ("serving/a-rank-2", 8002, 2),
    ]


@pytest.mark.parametrize("name", ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"])
def test_an_annotation_says_which_ports_serve_and_ranks_stay_what_they_are(name: str) -> None:
    found = endpoints_of(pod(annotations={name: "8002, 8001,9000"}), RANKS)
    assert [(one.port, one.rank) for one in found] == [(8001, 1), (8002, 2)]


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("8000", {8000}),
        (" 8000 ,8001", {8000, 8001}),
        ("", set()),
        ("http,8000,-1,80.5,٣", {8000}),
        ("65535,100000", {65535}),
        ("9" * 5000 + ",1", {1}),
    ],
)
def test_what_is_no_port_is_passed_over(text: str, ports: set[int]) -> None:
    assert active_ports({"llm-d.ai/active-ports": text}) == frozenset(ports)


def test_without_an_annotation_all_ports_serve_and_of_two_the_first_counts() -> None:
    assert active_ports({"other": "8000"}) is None
    both = {"inference.networking.k8s.io/active-ports": "1", "llm-d.ai/active-ports": "2"}
    assert active_ports(both) == frozenset({2})


@pytest.mark.parametrize(
    ("family", "ips", "address"),
    [
        ("any", ("10.0.0.1", "fd00::1"), "10.0.0.1"),
        ("any", ("fd00::1", "10.0.0.1"), "fd00::1"),
        ("IPv4", ("fd00::1", "10.0.0.1"), "10.0.0.1"),
        ("IPv6", ("10.0.0.1", "fd00::1"), "fd00::1"),
        ("IPv6", ("10.0.0.1",), ""),
        ("IPv4", ("fd00::1",), ""),
    ],
)
def test_of_several_addresses_the_primary_one_or_the_familys_is_taken(
    family: IpFamily, ips: tuple[str, ...], address: str
) -> None:
    assert address_of(pod("a", *ips), family) == address
    assert bool(endpoints_of(pod("a", *ips), POOL, family)) is bool(address)


def test_the_same_name_and_address_with_another_uid_is_another_server() -> None:
    assert endpoints_of(pod(), POOL) != endpoints_of(pod(uid="another"), POOL)


def test_what_is_kept_of_a_pod_makes_the_same_endpoints_and_is_a_fraction_of_it() -> None:
    annotations = {"llm-d.ai/active-ports": "8001", "kubectl.kubernetes.io/last-applied-configuration": "{…}"}
    kept = arrive(pod(annotations=dict(annotations)), PODS)
    assert endpoints_of(kept, RANKS) == endpoints_of(pod(annotations=annotations), RANKS)
    assert kept["metadata"]["annotations"] == {"llm-d.ai/active-ports": "8001"}
    assert kept["spec"] == {"nodeName": "n1"}
    assert [one["type"] for one in kept["status"]["conditions"]] == ["Ready"]
    assert "managedFields" not in kept["metadata"]
    assert "containerStatuses" not in kept["status"]
    terminating = arrive(pod(deletionTimestamp="2026-08-01T12:00:00Z"), PODS)
    assert not is_ready(terminating)


def test_a_pod_that_has_just_been_made_arrives_too() -> None:
    bare = {"metadata": {"name": "a", "namespace": "serving"}}
    assert endpoints_of(arrive(bare, PODS), POOL) == ()


def test_a_selector_is_by_equality_in_one_order() -> None:
    assert selector_text({"tier": "gold", "app": "vllm"}) == "app=vllm,tier=gold"
    assert selector_text({}) == ""
