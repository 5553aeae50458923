"""Pages of docs/ that come from the code say what the code says."""

from pathlib import Path

import pytest

from pointsman import docs
from pointsman.docs import PAGES, ROOT


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_code_gives(name: str) -> None:
    """When this fails, `make docs` writes the page anew."""
    assert (ROOT / name).read_text(encoding="utf-8") == PAGES[name]()


def test_every_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(docs, "PAGES", {"a.md": lambda: "one", "b.md": lambda: "two"})
    docs.main()
    assert [(tmp_path / name).read_text(encoding="utf-8") for name in ("a.md", "b.md")] == ["one", "two"]
