"""A release refuses what doesn't fit together, and takes its notes from the changelog."""

import hashlib
import shutil
from pathlib import Path

import pytest

from pointsman.docs import ROOT
from pointsman.release import ReleaseError, changes, checksums, disagreements
from shared.version import VERSION

CHANGELOG = """\
# Changelog

What changed for users.

## 1.10.0

- Ten.

## 1.1.0 (2026-01-02)

- One.
  More of it.

## 1.0.0

- The first.
"""


@pytest.mark.parametrize(
    ("version", "section"), [("1.10.0", "- Ten.\n"), ("1.1.0", "- One.\n  More of it.\n"), ("1.0.0", "- The first.\n")]
)
def test_the_notes_are_the_section_of_the_version(version: str, section: str) -> None:
    assert changes(CHANGELOG, version) == section


def test_a_version_without_a_section_is_refused() -> None:
    with pytest.raises(ReleaseError, match=r"no section '## 1.1'"):
        changes(CHANGELOG.replace("1.1.0", "1.1x"), "1.1")


def test_the_files_of_the_repository_name_the_version_of_the_code() -> None:
    assert disagreements(ROOT, VERSION) == []
    assert changes((ROOT / "CHANGELOG.md").read_text(), VERSION)


def test_each_file_that_names_another_version_is_told(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    found = disagreements(tmp_path, "9.9.9")
    for file in ("chart's version", "chart's appVersion", "Dockerfile", "image of picker", "picker.yaml"):
        assert any(file in item and f"is {VERSION}, not 9.9.9" in item for item in found), (file, found)


def test_the_checksums_are_those_of_all_files(tmp_path: Path) -> None:
    for name in ("b", "a", "SHA256SUMS"):
        (tmp_path / name).write_text(name)
    sums = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a", "b")}
    assert checksums(tmp_path) == f"{sums['a']}  a\n{sums['b']}  b\n"
