"""docs/compatibility.md says truly which plugin types of the Go original aren't there.

What it has of the code is held to that by `test_generated_pages`.
"""

import re

import pytest

from pointsman.docs import DOCS
from shared.config.originals import absent

PAGE = (DOCS / "compatibility.md").read_text(encoding="utf-8")
ABSENT = {
    name
    for line in PAGE.splitlines()
    for part in line.split("<!-- absent -->")[1:]
    for name in re.findall(r"`([a-z0-9-]+)`", part)
}


def test_what_the_page_calls_absent_is_in_the_table_of_absent_types() -> None:
    assert ABSENT
    assert not {name for name in ABSENT if not absent(name)}


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md"])
def test_how_many_published_documents_load_is_told_alike_everywhere(name: str) -> None:
    found = re.search(r"Of (\d+) documents that the Go original loads, (\d+) load here", PAGE)
    assert found is not None
    words = " ".join((DOCS.parent / name).read_text(encoding="utf-8").split())
    stated = re.findall(r"[Oo]f (\d+) published documents, \[?(\d+) load", words)
    assert stated == [found.groups()]
