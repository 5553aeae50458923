"""Facts that can't be published: refused where they are written, and kept from the bus where nobody writes them."""

import json

import pytest
from structlog.testing import capture_logs

from services.watcher.configuration import installed
from services.watcher.files import FileReader
from services.watcher.unpublishable import Unpublishable
from shared.model import Endpoint, Fact, Pool

HALF = "is half a character; both halves of a surrogate pair are needed"


def entry(**fields: object) -> str:
    return json.dumps({"endpoints": [{"name": "a", "address": "10.0.0.1", "port": 80, **fields}]})


def yaml(**fields: object) -> str:
    return "# endpoints\nendpoints:\n- " + json.dumps({"name": "a", "address": "10.0.0.1", "port": 80, **fields}) + "\n"


def resource(name: str) -> str:
    return json.dumps(
        {
            "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
            "kind": "InferenceObjective",
            "metadata": {"name": name},
            "spec": {"poolRef": {"name": "default"}, "priority": 1},
        }
    )


CONFIGURATION = "kind: EndpointPickerConfig\napiVersion: llm-d.ai/v1alpha1\n#" + "x" * 1_100_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (entry(labels={"a": "\ud800"}), rf"endpoints[0].labels.a: \ud800 {HALF}"),
        (entry(labels={"\udc00": "a"}), rf"endpoints[0].labels: \udc00 {HALF}"),
        (entry(name="a\ud800b"), rf"endpoints[0].name: \ud800 {HALF}"),
        (resource("a\ud800"), rf"metadata.name: \ud800 {HALF}"),
        (yaml(rank=1180591620717411303424), "endpoints[0].rank: 1180591620717411303424"),
        (yaml(labels={"a": "x" * 1_100_000}), "endpoints[0]: it makes a message of 1100"),
        (
            yaml(name="漢" * 253),
            "endpoints[0]: its name takes 2285 bytes of a key on the bus; 1536 are allowed (line 3)",
        ),
        (resource("x" * 5000), "document: its name takes 5000 bytes of a key on the bus; 1536 are allowed (line 1)"),
        (CONFIGURATION, "document: it makes a message of 1100"),
    ],
    ids=["label", "label's name", "name", "resource", "rank", "large label", "long name", "its name", "configuration"],
)
def test_it_is_refused_at_its_place_in_the_file(text: str, problem: str) -> None:
    errors = FileReader(None, installed).read("f", text.encode()).errors
    assert any(str(error).startswith(problem) for error in errors), [str(error)[:200] for error in errors]
    for error in errors:
        str(error).encode()  # whoever prints it can


def test_surrogate_pairs_are_characters() -> None:
    documents = FileReader(None, installed).read("f", entry(labels={"a": "\U0001f600"}).encode()).documents
    assert documents.endpoints is not None
    assert documents.endpoints[0].labels == {"a": "\U0001f600"}


def facts(**labels: str) -> dict[str, Fact]:
    return {
        name: Endpoint(id=name, name=name, address="10.0.0.1", port=80, labels={"a": label})
        for name, label in labels.items()
    }


def published(guard: Unpublishable, found: dict[str, Fact]) -> dict[str, Fact]:
    return {key: fact for key, fact in found.items() if guard.check(key, fact) is not None}


def test_what_cannot_be_published_costs_no_other_fact() -> None:
    guard = Unpublishable(lambda: 1000, 10)
    found = facts(a="fine", b="\ud800", c="x" * 2000, d="x" * 500)
    with capture_logs() as logs:
        for _ in range(2):
            assert published(guard, found) == {"a": found["a"], "d": found["d"]}
            assert guard.revision == 2
    assert guard.reasons.keys() == {"b", "c"}
    assert [log["key"] for log in logs] == ["b", "c"]
    assert published(guard, facts(a="fine", b="good again")).keys() == {"a", "b"}
    assert guard.check("c", None) is None
    assert (guard.reasons, guard.revision) == ({}, 4)


def test_another_server_may_take_other_facts() -> None:
    limits = [1000]
    guard = Unpublishable(lambda: limits[-1], 10)
    found = facts(a="x" * 500)
    for limit, expected in ((1000, found), (300, {}), (1000, found)):
        limits.append(limit)
        assert guard.limit_changed() == (limit != limits[-2])
        assert published(guard, found) == expected
        assert not guard.limit_changed()


@pytest.mark.parametrize(("most", "sound"), [(2, False), (3, True)])
def test_a_fact_of_more_entries_than_readers_take_is_left_out(most: int, sound: bool) -> None:
    guard = Unpublishable(lambda: 1000, most)
    fact = Pool(name="p", target_ports=(1, 2, 3))
    assert (guard.check("p", fact) is fact) is sound
    assert list(guard.reasons.values()) == ([] if sound else ["it has 3 entries; 2 are allowed"])
