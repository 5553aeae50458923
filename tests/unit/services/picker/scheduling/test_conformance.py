"""The plugins of the conformance suite of the Gateway API Inference Extension, and its cases that need no cluster."""

from typing import Any

import pytest

from services.picker.scheduling.conformance import SELECTION_HEADER as HEADER
from services.picker.scheduling.conformance import HeaderBasedTestingFilter
from services.picker.state.view import View
from shared.model import Endpoint
from tests.unit.services.picker.extproc.proxy import LEAN, body, headers, response_headers
from tests.unit.services.picker.handler import PickerUnderTest, destinations, refused
from tests.unit.services.picker.scheduling.plugins import plugin
from tests.unit.services.picker.world import cycle, pool, request

DOCUMENT = """\
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: header-based-testing-filter
- type: destination-endpoint-served-verifier
schedulingProfiles:
- name: conformance-profile
  plugins: [{pluginRef: header-based-testing-filter}]
"""
"""As the suite has it."""
PORTS = (3000, 3002, 3004)


def servers() -> View:
    """Two pods with three ranks each, and one with an IPv6 address."""
    members = [
        Endpoint(id=f"ns/{pod}-{rank}", name=f"{pod}-{rank}", address=address, port=port, rank=rank)
        for pod, address in (("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "fd00::1"))
        for rank, port in enumerate(PORTS)
    ]
    return pool(*members)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("10.0.0.2:3002", ["10.0.0.2:3002"]),
        ("10.0.0.2", ["10.0.0.2:3000"]),  # an address: any one endpoint of it
        ("10.0.0.2:3004,10.0.0.1:3000", ["10.0.0.2:3004", "10.0.0.1:3000"]),  # in this order
        (" 10.0.0.2:3004 , , 10.0.0.1 ", ["10.0.0.2:3004", "10.0.0.1:3000"]),
        ("10.0.0.1:3002,10.0.0.1:3004,10.0.0.1", ["10.0.0.1:3002"]),  # one for each address
        ("[fd00::1]:3002", ["[fd00::1]:3002"]),
        ("fd00::1", ["[fd00::1]:3000"]),
        ("[fd00:0:0:0:0:0:0:1]", ["[fd00::1]:3000"]),
        ("10.0.0.9,10.0.0.1:9999,nonsense:x", []),
        ("", []),
        (None, []),
    ],
)
def test_the_header_selects(sent: str | None, expected: list[str]) -> None:
    view = servers()
    run = cycle(view, request(headers=[] if sent is None else [("Test-EPP-Endpoint-Selection", sent)]))
    kept: Any = plugin(HeaderBasedTestingFilter, {}).filter(run, run.candidates)
    assert [view.layout.authorities[row] for row in kept.tolist()] == expected


def test_only_candidates_are_selected() -> None:
    run = cycle(servers(), request(headers=[(HEADER, "10.0.0.1:3000,10.0.0.2:3000")]))
    assert plugin(HeaderBasedTestingFilter, {}).filter(run, run.candidates[3:]).tolist() == [3]


def ask(world: PickerUnderTest, selection: str, served: str = "") -> tuple[list[Any], dict[str, str]]:
    pairs = {":method": "POST", ":path": "/v1/completions", HEADER: selection}
    stream, answers = world.begin(headers(pairs, modes=LEAN), body(b'{"model": "m", "prompt": "x"}', end=True))
    got = [] if answers[-1].status else world.say(stream, response_headers(served=served))
    stream.end()
    return answers, {name: value for answer in got for name, value in answer.set_headers.items()}


def test_gateway_following_epp_routing() -> None:
    world = PickerUnderTest(servers(), DOCUMENT)
    for authority in world.view.layout.authorities:
        answers, got = ask(world, authority, served=authority)
        assert destinations(answers) == authority
        assert got == {"x-conformance-test-served-endpoint": authority}


def test_gateway_destination_endpoint_served_is_what_the_proxy_says() -> None:
    world = PickerUnderTest(servers(), DOCUMENT)
    for served, told in (
        ("10.0.0.2:3000", "10.0.0.2:3000"),
        ("10.9.9.9:1", "10.9.9.9:1"),
        ("", "fail: missing destination endpoint served metadata"),
    ):
        assert ask(world, "10.0.0.1:3000", served)[1] == {"x-conformance-test-served-endpoint": told}


def test_without_a_selection_no_endpoint_is_left() -> None:
    answers, _ = ask(PickerUnderTest(servers(), DOCUMENT), "")
    assert refused(answers).status == 429
