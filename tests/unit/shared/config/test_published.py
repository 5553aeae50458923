"""The published configurations: those whose plugin types all exist load, the others name what is missing."""

import csv
import os
import re
from pathlib import Path

import pytest
from msgspec import Struct

from shared.config import Invalid, LoadedConfig, load
from shared.config.originals import ABSENT
from shared.config.schema import API_VERSIONS
from shared.plugin import Registry
from tests.unit.shared.config.stand_ins import completed, missing

FOLDER = os.environ.get("POINTSMAN_FIXTURES", "")
REGISTRY = Registry.installed()
MISSING = re.compile(r"'(.*)' is (a plugin type of the Go original that isn't available here|no plugin type).*")
MISSING_FEATURES = {
    "the KV cache as model servers report it",
    "predicted latency, and admission by it",
    "embeddings of pictures and videos in caches",
    "several clusters",
}
"""What no published document can use here."""
OF_TESTS = "test-"
"""What the names of types begin with that only the original's own tests have."""

PATHS: dict[str, tuple[str, ...]] = {
    "loader__errorBadFeatureGate.yaml": ("featureGates[0]",),
    "loader__errorBadPluginReference.yaml": ("plugins[0].type",),
    "loader__errorBadProfilePlugin.yaml": ("schedulingProfiles[0].plugins[0].pluginRef",),
    "loader__errorBadSourceReference.yaml": ("dataLayer.sources[0].pluginRef", "featureGates[0]"),
    "loader__errorDuplicatePlugin.yaml": ("plugins[1].name",),
    "loader__errorFlowControlMissingPlugin.yaml": ("flowControl.priorityBands[0].orderingPolicyRef",),
    "loader__errorMultiProfilesUseSingleProfileHandler.yaml": ("plugins[0]",),
    "loader__errorNoProfileName.yaml": ("schedulingProfiles[0].name",),
    "loader__errorParserWrongPluginType.yaml": ("requestHandler.parsers[0].pluginRef",),
    "loader__errorTwoPickers.yaml": ("schedulingProfiles[0].plugins",),
    "loader__errorUnknownFeatureGate.yaml": ("featureGates[0]",),
}
"""Where the files that have to be refused are wrong."""


class Published(Struct, frozen=True):
    """A line of the index."""

    file: str
    expected: str
    types: frozenset[str]

    @property
    def text(self) -> str:
        return (Path(FOLDER) / "configs" / self.file).read_text(encoding="utf-8")

    def load(self, types: Registry) -> LoadedConfig:
        return load(self.text, types, allow_experimental=self.expected == "ok+alpha")


def index() -> list[Published]:
    if not FOLDER:
        return []
    with open(Path(FOLDER) / "configs" / "INDEX.tsv", encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines, delimiter="\t"))[1:]
    return [Published(file, expected, frozenset(types.split())) for file, expected, types in rows]


def expecting(*expected: str) -> pytest.MarkDecorator:
    found = [document for document in index() if document.expected in expected]
    return pytest.mark.parametrize("published", found, ids=lambda one: one.file)


pytestmark = pytest.mark.skipif(not FOLDER, reason="POINTSMAN_FIXTURES isn't set: it names the folder with configs/")


@expecting("ok", "ok+alpha")
def test_a_published_configuration_loads_or_says_exactly_what_is_missing_and_where(published: Published) -> None:
    absent = missing(published.text, REGISTRY)
    assert set(absent.values()) == {name for name in published.types if REGISTRY.find(name) is None}
    named: dict[str, str] = {}
    try:
        published.load(REGISTRY)
    except Invalid as error:
        named = {problem.path: MISSING.sub(r"\1", problem.message) for problem in error.problems}
    assert named == absent


@expecting("ok", "ok+alpha")
def test_nothing_else_is_wrong_with_it_and_no_spelling_is_warned_of(published: Published) -> None:
    """Stand-ins for what is missing let the rest be judged.

    Warned of is the former group, and what a file is there to show at its former place.
    """
    config = published.load(completed(published.text, REGISTRY))
    assert {spec.kind.TYPE for spec in config.plugins.values() if spec.listed} >= published.types - former()
    spelled = [
        warning for warning in config.warnings if "deprecated" in warning.message and warning.path != "apiVersion"
    ]
    assert any(warning.path == "apiVersion" for warning in config.warnings) is (API_VERSIONS[1] in published.text)
    assert bool(spelled) is ("Deprecated" in published.file)


@expecting("ok", "ok+alpha")
def test_what_is_missing_is_of_few_features_and_has_a_substitute(published: Published) -> None:
    for name in set(missing(published.text, REGISTRY).values()):
        (feature,) = [feature for feature, types in ABSENT.items() if name in types]
        assert feature in MISSING_FEATURES, name
        assert REGISTRY.find(ABSENT[feature][name]) is not None, name


def former() -> set[str]:
    return {alias for kind in REGISTRY for alias in kind.ALIASES}


@expecting("error")
def test_a_file_that_has_to_be_refused_is_refused_at_its_place_and_for_nothing_else(published: Published) -> None:
    absent = set(missing(published.text, REGISTRY).values())
    assert all(name.startswith(OF_TESTS) for name in absent)
    with pytest.raises(Invalid) as caught:
        published.load(completed(published.text, REGISTRY))
    assert tuple(sorted(problem.path for problem in caught.value.problems)) == PATHS[published.file]


def test_the_index_has_every_file_and_files_of_every_kind() -> None:
    assert {document.expected for document in index()} == {"ok", "ok+alpha", "error"}
    assert {document.file for document in index()} == {path.name for path in (Path(FOLDER) / "configs").glob("*.yaml")}
    assert {document.file for document in index() if document.expected == "error"} == PATHS.keys()
