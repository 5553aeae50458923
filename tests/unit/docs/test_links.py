"""Links between the project's own pages lead to a file, and to a heading of it."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def links(page: Path) -> list[tuple[Path, str]]:
    """(the file, the anchor) of each relative link."""
    found = (target.partition("#") for target in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in target)
    return [((page.parent / path) if path else page, anchor) for path, _, anchor in found]


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    assert [str(path) for path, _ in links(page) if not path.exists()] == []


@every_page
def test_every_anchor_is_a_heading(page: Path) -> None:
    wanted = [(path, anchor) for path, anchor in links(page) if anchor and path.suffix == ".md"]
    assert [(path.name, anchor) for path, anchor in wanted if anchor not in anchors(path)] == []
