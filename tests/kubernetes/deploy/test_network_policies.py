"""Who may speak with whom, worked out from the policies as a network plug-in would."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import Struct

from tests.kubernetes.deploy.render import NAMESPACE, Objects, Renderer, envoy, workloads
from tests.kubernetes.deploy.test_same import VALUES


class Pod(Struct, frozen=True):
    """As policies see one."""

    namespace: str
    labels: dict[str, str]


GATEWAY = Pod("gateways", {"app": "envoy"})
PROMETHEUS = Pod("monitoring", {"app": "prometheus"})
SERVER = Pod(NAMESPACE, {"app": "model-server"})
STRANGER = Pod(NAMESPACE, {"app": "something"})
API = Pod("default", {"component": "apiserver"})
"""It is no pod; rules without peers hold for any address."""


def pods(objects: Objects) -> dict[str, Pod]:
    ours = {
        workload["metadata"]["name"].removeprefix("pointsman-"): Pod(
            NAMESPACE, workload["spec"]["template"]["metadata"]["labels"]
        )
        for workload in workloads(objects)
    }
    others = {"gateway": GATEWAY, "prometheus": PROMETHEUS, "server": SERVER, "stranger": STRANGER, "api": API}
    return {**ours, **others}


def may(objects: Objects, sender: Pod, receiver: Pod, port: int, protocol: str = "TCP") -> bool:
    """Whether the sender's policies let it out, and the receiver's let it in."""
    return _lets(objects, sender, receiver, "Egress", port, protocol) and _lets(
        objects, receiver, sender, "Ingress", port, protocol
    )


def _lets(objects: Objects, subject: Pod, peer: Pod, way: str, port: int, protocol: str) -> bool:
    policies = [
        obj["spec"]
        for (kind, _), obj in objects.items()
        if kind == "NetworkPolicy"
        and subject.namespace == NAMESPACE
        and _matches(obj["spec"]["podSelector"], subject.labels)
        and way in obj["spec"]["policyTypes"]
    ]
    rules = [rule for policy in policies for rule in policy.get(way.lower(), [])]
    side = {"Ingress": "from", "Egress": "to"}[way]
    return not policies or any(_meets(rule, side, peer, port, protocol) for rule in rules)


def _meets(rule: Mapping[str, Any], side: str, peer: Pod, port: int, protocol: str) -> bool:
    ports, peers = rule.get("ports", []), rule.get(side, [])
    return (not ports or {"port": port, "protocol": protocol} in ports) and (
        not peers or any(_is(one, peer) for one in peers)
    )


def _is(selector: Mapping[str, Any], peer: Pod) -> bool:
    assert selector.keys() <= {"podSelector", "namespaceSelector"}
    if "namespaceSelector" in selector:
        there = _matches(selector["namespaceSelector"], {"kubernetes.io/metadata.name": peer.namespace})
    else:
        there = peer.namespace == NAMESPACE
    return there and _matches(selector.get("podSelector", {}), peer.labels)


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


EVERY_PORT = (443, 4222, 6222, 6443, 8000, 8080, 8090, 8222, 9002, 9003, 9090, 9902)
WAYS = {
    *((tier, "nats", 4222) for tier in ("watcher", "collector", "picker")),
    ("nats", "nats", 6222),
    *(("watcher", "api", port) for port in (443, 6443)),
    *((sender, "picker", port) for sender in ("server", "stranger", "collector") for port in (9002, 9003)),
    *(("collector", server, port) for server in ("server", "stranger") for port in EVERY_PORT),
}
"""Every way between our pods, or to and from others, that is open: who begins, whom, on which port."""
SCRAPES = {("prometheus", tier, 9090) for tier in ("watcher", "collector", "picker")}
OURS = ("watcher", "collector", "picker", "nats", "console")
WITH_ENVOY = {
    ("envoy", "nats", 4222),
    *(("envoy", "api", port) for port in (443, 6443)),
    *(("envoy", "picker", port) for port in (9002, 9003)),
    *(("envoy", server, port) for server in ("server", "stranger") for port in EVERY_PORT if port not in (443, 6443)),
    *((client, "envoy", 8080) for client in ("gateway", "prometheus", "server", "stranger", "collector", "envoy")),
    *(("prometheus", "envoy", port) for port in (9090, 9902)),
}
"""With an Envoy of one's own, which has a watcher beside it."""


def ways(objects: Objects) -> set[tuple[str, str, int]]:
    everyone = pods(objects)
    return {
        (sender, receiver, port)
        for sender in everyone.keys() - {"api"}
        for receiver in everyone
        for port in EVERY_PORT
        if {sender, receiver} & {*OURS, "envoy"}
        and may(objects, everyone[sender], everyone[receiver], port)
        # what a watcher may for the API's sake goes to any address that lets it in
        and not (sender in ("watcher", "envoy") and port in (443, 6443) and receiver != "api")
    }


def test_these_ways_are_open_and_no_others(base: Objects) -> None:
    assert ways(base) == WAYS


def test_clients_reach_the_listener_of_an_envoy_of_ones_own_and_no_other_port_of_its_pod(base: Objects) -> None:
    assert ways(base | envoy()) == WAYS | WITH_ENVOY


def test_prometheus_reads_the_admin_ports_where_it_is_asked_to(renderer: Renderer) -> None:
    assert ways(renderer.chart(VALUES["monitoring"])) == WAYS | SCRAPES


def test_a_console_asks_nats_alone_and_admits_who_is_named(renderer: Renderer) -> None:
    asks = {("console", "nats", 4222)}
    assert ways(renderer.chart(VALUES["console"])) == WAYS | asks
    scraped = ways(renderer.base("console", "monitoring"))
    assert scraped == WAYS | SCRAPES | asks | {("prometheus", "console", 9090)}
    named = {"networkPolicy": {"console": [namespace("gateways")]}, **VALUES["console"]}
    assert ways(renderer.chart(named)) == WAYS | asks | {("gateway", "console", 8090)}


def test_everyone_of_ours_can_look_up_names(renderer: Renderer) -> None:
    objects = renderer.base("console") | envoy()
    everyone = pods(objects)
    assert all(
        may(objects, everyone[our], API, 53, protocol) for our in (*OURS, "envoy") for protocol in ("UDP", "TCP")
    )


def namespace(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


ELSEWHERE = Pod("nats", {})
TWO_URLS = {"enabled": False, "url": "nats://one.example:4333,tls://two.example"}


@pytest.mark.parametrize(
    ("values", "port", "opened", "closed"),
    [
        ({"networkPolicy": {"gateways": [namespace("gateways")]}}, 9002, [(GATEWAY, "picker")], [(STRANGER, "picker")]),
        ({"networkPolicy": {"gateways": []}}, 9002, [], [(STRANGER, "picker")]),
        (
            {"networkPolicy": {"natsClients": [namespace("models")]}},
            4222,
            [(Pod("models", {}), "nats"), ("picker", "nats")],
            [(STRANGER, "nats")],
        ),
        ({"nats": TWO_URLS}, 4222, [("picker", ELSEWHERE)], []),
        ({"nats": TWO_URLS}, 4333, [("picker", ELSEWHERE)], []),
        ({"nats": TWO_URLS}, 4444, [], [("picker", ELSEWHERE)]),
    ],
)
def test_values_open_ways_and_close_them(
    renderer: Renderer, values: dict[str, Any], port: int, opened: list[Any], closed: list[Any]
) -> None:
    objects = renderer.chart(values)
    for ways, expected in ((opened, True), (closed, False)):
        for way in ways:
            sender, receiver = (pods(objects)[one] if isinstance(one, str) else one for one in way)
            assert may(objects, sender, receiver, port) is expected, way


def test_policies_can_be_left_out(renderer: Renderer) -> None:
    assert not [key for key in renderer.chart({"networkPolicy": {"enabled": False}}) if key[0] == "NetworkPolicy"]
