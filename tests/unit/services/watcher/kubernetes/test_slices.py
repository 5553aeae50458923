"""When what an EndpointSlice lists is an endpoint."""

from typing import Any

import pytest

from services.watcher.kubernetes.endpoints import endpoints_of_slice
from services.watcher.kubernetes.settings import IpFamily
from shared.model import Endpoint, Pool

POOL = Pool(name="llama", target_ports=(8000,))


def slice_of(*endpoints: dict[str, Any], kind: str = "IPv4") -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "servers-x", "namespace": "serving"},
        "addressType": kind,
        "ports": [{"port": 80}],
        "endpoints": list(endpoints),
    }


def entry(address: str = "10.0.0.1", pod: str = "a", **conditions: bool | None) -> dict[str, Any]:
    target = {"kind": "Pod", "name": pod, "namespace": "serving", "uid": f"uid-{pod}"}
    return {"addresses": [address], "conditions": conditions, "targetRef": target, "nodeName": "n1"}


def test_a_pod_of_a_slice_is_the_endpoint_that_the_pod_itself_would_be_without_labels() -> None:
    assert endpoints_of_slice(slice_of(entry(ready=True)), POOL) == (
        Endpoint(
            id="serving/a-rank-0",
            name="a-rank-0",
            namespace="serving",
            address="10.0.0.1",
            port=8000,
            rank=0,
            node="n1",
            uid="uid-a",
        ),
    )


@pytest.mark.parametrize(
    ("conditions", "serves"),
    [
        ({"ready": True, "serving": True, "terminating": False}, True),
        ({"ready": False, "serving": False, "terminating": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "terminating": True}, False),
        ({}, True),
        ({"ready": None}, True),
        (None, True),
    ],
    ids=["ready", "not ready", "terminating", "ready and terminating", "not told", "null", "none"],
)
def test_conditions_say_whether_it_serves_and_what_is_not_told_is_ready(
    conditions: dict[str, Any] | None, serves: bool
) -> None:
    assert bool(endpoints_of_slice(slice_of({**entry(), "conditions": conditions}), POOL)) is serves


@pytest.mark.parametrize(
    ("kind", "family", "taken"),
    [
        ("IPv4", "any", True),
        ("IPv6", "any", True),
        ("IPv4", "IPv4", True),
        ("IPv4", "IPv6", False),
        ("IPv6", "IPv4", False),
        ("FQDN", "any", False),
    ],
)
def test_the_family_decides_and_host_names_are_no_addresses(kind: str, family: IpFamily, taken: bool) -> None:
    assert bool(endpoints_of_slice(slice_of(entry(), kind=kind), POOL, family)) is taken


@pytest.mark.parametrize(
    "target", [{"kind": "Node", "name": "n"}, {"kind": "Pod"}, {"kind": "Pod", "name": ""}, {}, None], ids=str
)
def test_what_is_no_pod_with_a_name_goes_by_its_address(target: Any) -> None:
    found = endpoints_of_slice(slice_of({**entry("10.0.0.7"), "targetRef": target}, entry("10.0.0.8")), POOL)
    assert [each.id for each in found] == ["serving/10.0.0.7-rank-0", "serving/a-rank-0"]


@pytest.mark.parametrize("endpoints", [None, [], [{"addresses": []}]])
def test_a_slice_without_addresses_has_none(endpoints: Any) -> None:
    assert endpoints_of_slice({**slice_of(), "endpoints": endpoints}, POOL) == ()
