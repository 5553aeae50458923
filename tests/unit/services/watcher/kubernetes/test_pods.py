"""When a pod is an endpoint, which ones, and what is known of them."""

import copy
from functools import partial
from typing import Any

import pytest

from services.watcher.kubernetes.endpoints import (
    address_of,
    endpoints_of,
    endpoints_of_slice,
    is_ready,
    is_unreachable,
    selector_text,
    strip_pod,
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
        {"metadata": {"name": "a", "namespace": "serving"}},
    ],
    ids=[
        *("not ready", "unknown", "terminating", "succeeded", "failed"),
        *("no conditions", "no status", "null status", "just made"),
    ],
)
def test_a_pod_that_cannot_take_requests_is_none(unable: dict[str, Any]) -> None:
    assert not is_ready(unable)
    assert endpoints_of(unable, POOL) == endpoints_of(strip_pod(copy.deepcopy(unable), PODS), POOL) == ()


@pytest.mark.parametrize(
    ("conditions", "changes", "unreachable"),
    [
        ({"Ready": "False", "ContainersReady": "True"}, {}, True),
        ({"Ready": "True", "ContainersReady": "True"}, {}, False),
        ({"Ready": "False", "ContainersReady": "False"}, {}, False),
        ({"Ready": "False"}, {}, False),
        ({"Ready": "False", "ContainersReady": "True"}, {"spec": {"readinessGates": [{"conditionType": "a"}]}}, False),
        ({"Ready": "False", "ContainersReady": "True"}, {"metadata": {"deletionTimestamp": "2026-08-01"}}, False),
    ],
)
def test_a_pod_is_unreachable_if_it_has_lost_readiness_but_not_that_of_its_containers(
    conditions: dict[str, str], changes: dict[str, dict[str, Any]], unreachable: bool
) -> None:
    whole = pod()
    whole["status"]["conditions"] = [{"type": name, "status": status} for name, status in conditions.items()]
    for part, more in changes.items():
        whole[part] |= more
    kept = strip_pod(copy.deepcopy(whole), PODS)
    assert {is_unreachable(whole), is_unreachable(kept)} == {unreachable}
    assert bool(endpoints_of(kept, POOL, serves=is_unreachable)) is unreachable


LLMD, STABLE = "llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"


@pytest.mark.parametrize(
    ("annotations", "ranks"),
    [
        ({}, [(8000, 0), (8001, 1), (8002, 2)]),
        ({"other": "8000"}, [(8000, 0), (8001, 1), (8002, 2)]),
        ({LLMD: "8002, 8001,9000"}, [(8001, 1), (8002, 2)]),
        ({STABLE: "8002"}, [(8002, 2)]),
        ({STABLE: "8001", LLMD: "8002"}, [(8002, 2)]),
        ({LLMD: ""}, []),
        ({LLMD: "1," * 999 + "8001,8002"}, [(8001, 1)]),
        ({LLMD: " 8000 ,http,-1,80.5,٨٠٠١,100000," + "9" * 5000}, [(8000, 0)]),
    ],
)
def test_each_target_port_that_the_annotation_names_is_a_rank(
    annotations: dict[str, str], ranks: list[tuple[int, int]]
) -> None:
    found = endpoints_of(pod(annotations=annotations), RANKS)
    assert [(each.id, each.port, each.rank) for each in found] == [
        (f"serving/a-rank-{at}", port, at) for port, at in ranks
    ]


@pytest.mark.parametrize(
    ("family", "ips", "address"),
    [
        ("any", ("10.0.0.1", "fd00::1"), "10.0.0.1"),
        ("any", ("fd00::1", "10.0.0.1"), "fd00::1"),
        ("IPv4", ("fd00::1", "10.0.0.1"), "10.0.0.1"),
        ("IPv6", ("10.0.0.1", "fd00::1"), "fd00::1"),
        ("IPv6", ("10.0.0.1",), ""),
        ("IPv4", ("fd00::1",), ""),
        ("any", ("",), ""),
    ],
)
def test_of_several_addresses_the_primary_one_or_the_familys_is_taken(
    family: IpFamily, ips: tuple[str, ...], address: str
) -> None:
    assert address_of(pod("a", *ips), family) == address
    assert bool(endpoints_of(pod("a", *ips), POOL, family)) is bool(address)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("fe80::1%nope", "has a zone"),
        ("::", "means every address"),
        ("ff02::1", "is a multicast address"),
        ("a", "isn't an IP address"),
    ],
)
def test_an_address_that_no_server_can_have_is_refused(address: str, reason: str) -> None:
    item = {
        "metadata": {"name": "s", "namespace": "serving"},
        "addressType": "IPv6",
        "endpoints": [{"addresses": [address]}],
    }
    for read in (partial(endpoints_of, pod("a", address)), partial(endpoints_of_slice, item)):
        with pytest.raises(ValueError, match=f"^'{address}' {reason}"):
            read(POOL)


def test_what_is_kept_of_a_pod_makes_the_same_endpoints_and_is_a_fraction_of_it() -> None:
    annotations = {"llm-d.ai/active-ports": "8001", "kubectl.kubernetes.io/last-applied-configuration": "{…}"}
    kept = strip_pod(pod(annotations=dict(annotations)), PODS)
    assert endpoints_of(kept, RANKS) == endpoints_of(pod(annotations=annotations), RANKS)
    assert kept["metadata"]["annotations"] == {"llm-d.ai/active-ports": "8001"}
    assert kept["spec"] == {"nodeName": "n1"}
    assert [each["type"] for each in kept["status"]["conditions"]] == ["Ready"]
    assert "managedFields" not in kept["metadata"]
    assert "containerStatuses" not in kept["status"]


def test_a_selector_is_by_equality_in_one_order() -> None:
    assert selector_text({"tier": "gold", "app": "vllm"}) == "app=vllm,tier=gold"
    assert selector_text({}) == ""


@pytest.mark.parametrize(
    ("annotations", "labels", "draining"),
    [
        (None, None, False),
        ({"pointsman/drain": "true"}, None, True),
        ({"pointsman/drain": "maintenance"}, {"app": "vllm"}, True),
        ({"pointsman/drain": "false"}, {}, False),
        ({}, {"pointsman/drain": ""}, True),
        ({"other/drain": "true"}, {"pointsman/drain": "false"}, False),
    ],
)
def test_a_pod_drains_by_its_annotation_or_its_label(
    annotations: dict[str, str] | None, labels: dict[str, str] | None, draining: bool
) -> None:
    kept = strip_pod(pod(annotations=annotations, labels=labels), PODS)
    assert [each.draining for each in endpoints_of(kept, RANKS)] == [draining] * 3
