"""The parts of docs/compatibility.md that come from the code: types that aren't here, and what loads.

The rest of the page is written by hand, so these parts stand between comments. Published documents aren't part of this
repository: `POINTSMAN_FIXTURES` names a folder with `configs/INDEX.tsv` and the documents that it lists.
"""

import csv
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from shared.config import Invalid, load
from shared.config.originals import ABSENT, absent
from shared.config.problems import show
from shared.plugin import Registry

ABSENT_TYPES = "absent types"
PUBLISHED = "published documents"


class Judged(Struct, frozen=True):
    """A published document, and what becomes of it here."""

    file: str
    expected: str
    """`ok`, `ok+alpha` (with experimental plugins), or `error`: what the Go original makes of it."""
    missing: tuple[str, ...] = ()
    """Types that aren't here."""
    other: tuple[str, ...] = ()
    """What else is wrong with it."""

    @property
    def loads(self) -> bool:
        return not self.missing and not self.other


def compatibility_page(page: str, fixtures: str, registry: Registry) -> str:
    """The page with its parts made anew; that of published documents as it was where `fixtures` names no folder."""
    page = fill(page, ABSENT_TYPES, absent_types())
    if fixtures:
        page = fill(page, PUBLISHED, published(judge(Path(fixtures) / "configs", registry)))
    return page


def fill(page: str, part: str, body: str) -> str:
    """The page with this body between the comments that name the part. Raises ValueError where it hasn't got them."""
    begin, end = f"<!-- begin {part}: `make docs` writes this -->\n", f"<!-- end {part} -->\n"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no part {part!r}: {begin.strip()} … {end.strip()}")
    return f"{before}{begin}\n{body}\n{end}{after}"


def absent_types() -> str:
    """A table of what the Go original has and isn't here."""
    lines = ["| feature | refused types, each with the nearest existing type |", "|---|---|"]
    for purpose, types in ABSENT.items():
        named = [f"`{name}`" + (f" ({substitute})" if substitute else "") for name, substitute in types.items()]
        lines.append(f"| {purpose} | {', '.join(named)} |")
    return "\n".join(lines) + "\n"


def judge(folder: Path, registry: Registry) -> list[Judged]:
    """What becomes of the documents that the folder's index lists."""
    with (folder / "INDEX.tsv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines, delimiter="\t"))[1:]
    return [_judged(folder, file, expected, types.split(), registry) for file, expected, types in rows]


def _judged(folder: Path, file: str, expected: str, types: Iterable[str], registry: Registry) -> Judged:
    text = (folder / file).read_text(encoding="utf-8")
    try:
        load(text, registry, file, allow_experimental=expected == "ok+alpha")
    except Invalid as error:
        missing = {name: f"{show(name)} {absent(name)}" for name in types if absent(name) and not registry.find(name)}
        other = [str(one) for one in error.problems if one.message not in missing.values()]
        return Judged(file, expected, tuple(missing), tuple(other))
    return Judged(file, expected)


def published(judged: Iterable[Judged]) -> str:
    """How many load, and a table of all."""
    documents = list(judged)
    good = [one for one in documents if one.expected != "error"]
    bad = [one for one in documents if one.expected == "error"]
    lines = [
        f"Of {len(good)} documents that the Go original loads, {sum(one.loads for one in good)} load here and "
        f"{sum(not one.loads for one in good)} are refused; {sum(not one.loads for one in bad)} of {len(bad)} that it "
        "refuses are refused here too.",
        "",
        "| document | Go original | Pointsman | missing types |",
        "|---|---|---|---|",
    ]
    for one in documents:
        there = {"ok": "loads", "ok+alpha": "loads with experimental plugins"}.get(one.expected, "refused")
        here = there if one.loads and one.expected != "error" else "loads" if one.loads else "refused"
        missing = ", ".join(f"`{name}`" for name in one.missing)
        reasons = "; ".join(one.other) if one.expected != "error" else ""
        lines.append(f"| `{one.file}` | {there} | {here} | {missing or reasons.replace('|', '&#124;') or '–'} |")
    return "\n".join(lines) + "\n"
