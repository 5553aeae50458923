"""The published configurations: those whose plugin types all exist load, the others name what is missing."""

import csv
import os
from pathlib import Path

import pytest
from msgspec import Struct

from shared.config import Invalid, load
from shared.plugin import Registry

FOLDER = os.environ.get("POINTSMAN_FIXTURES", "")
NOT_INSTALLED = "is no plugin type that is installed"


class Published(Struct, frozen=True):
    """A line of the index."""

    file: str
    expected: str
    types: frozenset[str]

    @property
    def text(self) -> str:
        return (Path(FOLDER) / "configs" / self.file).read_text(encoding="utf-8")


def index() -> list[Published]:
    if not FOLDER:
        return []
    with open(Path(FOLDER) / "configs" / "INDEX.tsv", encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines, delimiter="\t"))[1:]
    return [Published(file, expected, frozenset(types.split())) for file, expected, types in rows]


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.installed()


pytestmark = pytest.mark.skipif(not FOLDER, reason="POINTSMAN_FIXTURES isn't set: it names the folder with configs/")


@pytest.mark.parametrize("published", index(), ids=lambda one: one.file)
def test_a_published_configuration_loads_or_says_exactly_what_is_missing(
    published: Published, registry: Registry
) -> None:
    missing = {name for name in published.types if registry.find(name) is None}
    lines: list[str] = []
    try:
        load(published.text, registry, allow_experimental=published.expected == "ok+alpha")
    except Invalid as error:
        lines = error.lines()
    named = {line.split("'")[1] for line in lines if NOT_INSTALLED in line}
    assert named == missing
    if published.expected == "error":
        assert lines
    else:
        assert [line for line in lines if NOT_INSTALLED not in line] == []


@pytest.mark.parametrize("published", [one for one in index() if one.expected == "ok+alpha"], ids=lambda one: one.file)
def test_a_configuration_of_alpha_types_is_refused_by_default(published: Published, registry: Registry) -> None:
    with pytest.raises(Invalid):
        load(published.text, registry)


def test_the_index_has_files_of_every_kind() -> None:
    assert {one.expected for one in index()} == {"ok", "ok+alpha", "error"}
