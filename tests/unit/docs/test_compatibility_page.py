"""docs/compatibility.md says truly which plugin types of the Go original aren't there."""

import os
import re
from pathlib import Path

import pytest

from pointsman.docs import DOCS
from shared.plugin import Registry

REGISTRY = Registry.installed()
PAGE = (DOCS / "compatibility.md").read_text(encoding="utf-8")
ABSENT = {
    name
    for line in PAGE.splitlines()
    for part in line.split("<!-- absent -->")[1:]
    for name in re.findall(r"`([a-z0-9-]+)`", part)
}


def test_what_the_page_calls_absent_is_absent() -> None:
    assert len(ABSENT) > 50
    assert not {name for name in ABSENT if REGISTRY.find(name) is not None}


@pytest.mark.skipif(not os.environ.get("POINTSMAN_FIXTURES"), reason="POINTSMAN_FIXTURES names no documents")
def test_what_published_documents_name_is_there_or_on_the_page() -> None:
    documents = sorted((Path(os.environ["POINTSMAN_FIXTURES"]) / "configs").glob("*.yaml"))
    assert documents
    named = {name for one in documents for name in re.findall(r"^\s*-?\s*type: ([a-z0-9-]+)$", one.read_text(), re.M)}
    unknown = {name for name in named if REGISTRY.find(name) is None} - ABSENT
    assert not {name for name in unknown if not name.startswith("test-")}
