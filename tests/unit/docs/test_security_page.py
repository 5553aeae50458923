"""docs/security.md: every limit that is a setting is changed by some test."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
FLAG = re.compile(r"`--([a-z0-9-]+)`")
PARAMETER = re.compile(r"`(max[A-Za-z]+)`")
CAPITAL = re.compile(r"[A-Z]")
WORD = re.compile(r"[A-Za-z0-9_]+|--[a-z0-9-]+")
HTTP2 = ROOT / "tests/unit/services/picker/transport"
"""Tests of the options, which `test_every_option_is_a_setting` has as settings."""


def words(folder: Path) -> set[str]:
    """All names in the tests of a folder."""
    files = (file for file in folder.rglob("test_*.py") if file != Path(__file__))
    return {word for file in files for word in WORD.findall(file.read_text(encoding="utf-8"))}


def test_some_test_changes_each_setting_that_is_a_limit() -> None:
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    section = page[page.index("\n## Limits\n") : page.index("\n## How it is tested\n")]
    cells = "\n".join(row.split("|")[2] for row in section.splitlines() if row.startswith("| "))
    flags, parameters = FLAG.findall(cells), PARAMETER.findall(cells)
    assert len(flags) > 50
    every, options = words(ROOT / "tests"), words(HTTP2)
    names = {flag: flag.replace("-", "_") for flag in flags}
    untested = [flag for flag, name in names.items() if not {f"--{flag}", name} & every]
    untested = [flag for flag in untested if names[flag].removeprefix("http2_") not in options or "http2" not in flag]
    untested += [name for name in parameters if not {name, CAPITAL.sub(r"_\g<0>", name).lower()} & every]
    assert untested == []
