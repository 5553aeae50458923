"""Pages of docs/ that come from the code say what the code says."""

import pytest

from pointsman.docs import PAGES, ROOT


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_code_gives(name: str) -> None:
    """When this fails, `make docs` writes the page anew."""
    assert (ROOT / name).read_text(encoding="utf-8") == PAGES[name]()
