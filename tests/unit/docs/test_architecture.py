"""docs/architecture.md names files and folders that are there, and stays short."""

import re

from pointsman.docs import DOCS, ROOT

PAGE = (DOCS / "architecture.md").read_text(encoding="utf-8")


def test_every_path_that_the_page_names_is_there() -> None:
    paths = set(re.findall(r"`((?:shared|services|pointsman|tests|deploy)/[\w./-]+)`", PAGE))
    assert len(paths) > 50
    assert {path for path in paths if not (ROOT / path).exists()} == set()


def test_the_page_has_at_most_300_lines() -> None:
    assert len(PAGE.splitlines()) <= 300
