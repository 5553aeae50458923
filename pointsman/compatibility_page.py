"""The generated parts of docs/compatibility.md: types that don't exist here, and which published documents load.

Comments mark these parts; the rest of the page is written by hand. Published documents aren't part of this repository:
`POINTSMAN_FIXTURES` names a folder with `configs/INDEX.tsv` and the documents that it lists.
"""

import csv
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from pointsman.markdown import code, table
from shared.config import Invalid, load
from shared.config.originals import ABSENT, absent
from shared.config.problems import show
from shared.plugin import Registry

ABSENT_TYPES = "absent types"
PUBLISHED = "published documents"


class DocumentResult(Struct, frozen=True):
    """A published document, and whether it loads."""

    file: str
    expected: str
    """The Go original's result: `ok`, `ok+alpha` (with experimental plugins) or `error`."""
    missing: tuple[str, ...] = ()
    """Types that don't exist here."""
    other: tuple[str, ...] = ()
    """Other errors."""

    @property
    def loads(self) -> bool:
        return not self.missing and not self.other


def compatibility_page(page: str, fixtures: str, registry: Registry) -> str:
    """The page with its parts updated; without `fixtures`, that of published documents stays."""
    page = fill(page, ABSENT_TYPES, absent_types())
    if fixtures:
        page = fill(page, PUBLISHED, published(load_documents(Path(fixtures) / "configs", registry)))
    return page


def fill(page: str, part: str, body: str) -> str:
    """The page with this body between the comments of the part. Raises ValueError if it lacks the comments."""
    begin, end = f"<!-- begin {part}: `make docs` writes this -->\n", f"<!-- end {part} -->\n"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no part {part!r}: {begin.strip()} … {end.strip()}")
    return f"{before}{begin}\n{body}\n{end}{after}"


def absent_types() -> str:
    """A table of the Go original's types that don't exist here."""
    rows = []
    for purpose, types in ABSENT.items():
        named = [code(name) + (f" ({substitute})" if substitute else "") for name, substitute in types.items()]
        rows.append((purpose, ", ".join(named)))
    return table(("feature", "refused types, each with the nearest existing type"), rows)


def load_documents(folder: Path, registry: Registry) -> list[DocumentResult]:
    """Load the documents that the folder's index lists."""
    with (folder / "INDEX.tsv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines, delimiter="\t"))[1:]
    return [_result(folder, file, expected, types.split(), registry) for file, expected, types in rows]


def _result(folder: Path, file: str, expected: str, types: Iterable[str], registry: Registry) -> DocumentResult:
    text = (folder / file).read_text(encoding="utf-8")
    try:
        load(text, registry, file, allow_experimental=expected == "ok+alpha")
    except Invalid as error:
        missing = {name: f"{show(name)} {absent(name)}" for name in types if absent(name) and not registry.find(name)}
        other = [str(problem) for problem in error.problems if problem.message not in missing.values()]
        return DocumentResult(file, expected, tuple(missing), tuple(other))
    return DocumentResult(file, expected)


def published(results: Iterable[DocumentResult]) -> str:
    """The number of documents that load, and a table of all."""
    documents = list(results)
    good = [document for document in documents if document.expected != "error"]
    bad = [document for document in documents if document.expected == "error"]
    loaded, refused = sum(document.loads for document in good), sum(not document.loads for document in bad)
    first = (
        f"Of {len(good)} documents that the Go original loads, {loaded} load here and {len(good) - loaded} are refused;"
        f" {refused} of {len(bad)} that it refuses are refused here too.\n\n"
    )
    return first + table(("document", "Go original", "Pointsman", "missing types"), map(_row, documents))


def _row(document: DocumentResult) -> tuple[str, str, str, str]:
    there = {"ok": "loads", "ok+alpha": "loads with experimental plugins"}.get(document.expected, "refused")
    here = "refused" if not document.loads else "loads" if document.expected == "error" else there
    reasons = "; ".join(document.other) if document.expected != "error" else ""
    return code(document.file), there, here, ", ".join(map(code, document.missing)) or reasons
