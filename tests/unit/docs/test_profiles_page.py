"""docs/profiles.md names every file of docs/profiles/, and each loads as it stands."""

import re
from pathlib import Path

import pytest

from pointsman.docs import DOCS
from shared.config import load
from shared.plugin import Registry

FILES = sorted((DOCS / "profiles").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_profile_loads_without_a_warning(file: Path) -> None:
    assert not load(file.read_text(encoding="utf-8"), Registry.installed(), file.name).warnings


def test_the_page_names_every_file() -> None:
    page = (DOCS / "profiles.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(profiles/([\w-]+\.yaml)\)", page)) == {file.name for file in FILES}
