"""Resources of a cluster that can't be published."""

import pytest

from services.watcher.kubernetes.reading import read_item
from services.watcher.sources import Rejected
from tests.unit.services.watcher.kubernetes.readings import LLAMA, item_of


@pytest.mark.parametrize(
    ("name", "model", "problem"),
    [
        ("x" * 5000, "m", "document: its name takes 5000 bytes of a key on the bus; 1536 are allowed"),
        ("a", "x" * 1_100_000, "document: it makes a message of 1100"),
    ],
    ids=["name", "size"],
)
def test_a_resource_that_cannot_be_published_is_refused(name: str, model: str, problem: str) -> None:
    rule = {"targets": [{"modelRewrite": model}]}
    item = item_of("InferenceModelRewrite", name, {"poolRef": {"name": "llama"}, "rules": [rule]})
    found = read_item(item, "InferenceModelRewrite", "origin", LLAMA)
    assert isinstance(found, Rejected)
    assert str(found.problems[0]).startswith(problem)
    assert found.states == ("rewrite", name)
