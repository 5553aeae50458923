"""The parts of tests/deploy that need no container: its table, the cluster's DNS."""

import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.dns import answer, records
from tests.deploy.results import Result, render, write

SERVICES: list[dict[str, Any]] = [
    {"metadata": {"name": "api", "namespace": "one"}, "spec": {"clusterIP": "10.96.0.7"}},
    {"metadata": {"name": "pickers", "namespace": "one"}, "spec": {"clusterIP": "None"}},
    {"metadata": {"name": "nats", "namespace": "one"}, "spec": {"clusterIP": "None", "publishNotReadyAddresses": True}},
]


def part(service: str, namespace: str, *endpoints: tuple[str, bool, str]) -> dict[str, Any]:
    return {
        "metadata": {"namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
        "endpoints": [
            {"addresses": [address], "conditions": {"ready": ready}, **({"hostname": host} if host else {})}
            for address, ready, host in endpoints
        ],
    }


SLICES = [
    part("pickers", "one", ("10.244.0.2", True, ""), ("10.244.0.3", False, "")),
    part("pickers", "other", ("10.244.0.9", True, "")),
    part("nats", "one", ("10.244.0.4", False, "nats-0")),
    {"metadata": {"namespace": "one"}, "endpoints": None},
]


def test_services_have_the_names_and_addresses_that_a_cluster_gives_them() -> None:
    assert records(SERVICES, SLICES) == {
        "api.one.svc.cluster.local": ("10.96.0.7",),
        "pickers.one.svc.cluster.local": ("10.244.0.2",),
        "nats.one.svc.cluster.local": ("10.244.0.4",),
        "nats-0.nats.one.svc.cluster.local": ("10.244.0.4",),
    }


def query(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!6H", 77, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)


@pytest.mark.parametrize(
    ("name", "kind", "code", "addresses"),
    [
        ("a.b", 1, 0, ["10.0.0.1", "10.0.0.2"]),
        ("A.b", 1, 0, ["10.0.0.1", "10.0.0.2"]),
        ("a.b", 28, 0, []),  # AAAA: the name exists
        ("empty.b", 1, 0, []),
        ("c.b", 1, 3, []),
    ],
)
def test_a_question_is_answered_with_all_addresses(name: str, kind: int, code: int, addresses: list[str]) -> None:
    asked = query(name, kind)
    reply = answer(asked, {"a.b": ("10.0.0.1", "10.0.0.2"), "empty.b": ()})
    number, flags, questions, answers, _, _ = struct.unpack_from("!6H", reply)
    assert (number, flags & 0x000F, questions, answers) == (77, code, 1, len(addresses))
    assert reply[12 : len(asked)] == asked[12:]
    found = [reply[at + 12 : at + 16] for at in range(len(asked), len(reply), 16)]
    assert [socket.inet_ntoa(item) for item in found] == addresses


def test_the_table_has_excused_failures_and_names_the_others() -> None:
    text = render(
        [
            Result(scenario="good", requests=10, seconds=3.4),
            Result(scenario="excused", requests=10, excused=2, note="as said"),
            Result(scenario="bad", requests=10, failed=1),
            Result(scenario="broken", requests=10, error="AssertionError: why"),
        ]
    )
    assert "| good | 10 | 0 | 3 s | – |" in text
    assert "| excused | 10 | 2 | – | as said |" in text
    assert text.endswith("FAILED bad: 1 requests\nFAILED broken: AssertionError: why")


def test_a_table_replaces_the_one_of_its_part(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n\n<!-- a -->\nold\n<!-- end -->\n\n# B\n\n<!-- b -->\n<!-- end -->\n")
    write(page, "b", "second")
    write(page, "a", "first")
    assert page.read_text() == "# A\n\n<!-- a -->\nfirst\n<!-- end -->\n\n# B\n\n<!-- b -->\nsecond\n<!-- end -->\n"
    row = render([Result(scenario="one", requests=1), Result(scenario="two", requests=2)])
    write(page, "a", row)
    write(page, "a", render([Result(scenario="two", requests=3), Result(scenario="three", requests=4)]), keep=True)
    assert [line.split(" | ")[:2] for line in page.read_text().splitlines() if line.startswith("| ")] == [
        ["| scenario", "requests"],
        ["| one", "1"],
        ["| two", "3"],
        ["| three", "4"],
    ]
    with pytest.raises(ValueError, match="has no"):
        write(page, "c", "third")
