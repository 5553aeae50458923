"""docs/compatibility.md says truly which plugin types of the Go original aren't there.

What it has of the code is held to that by `test_generated_pages`.
"""

import re

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
