"""What the scenarios showed, as a table for people."""

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from pointsman.markdown import table


class Result(Struct, frozen=True, kw_only=True):
    """One scenario."""

    scenario: str
    requests: int = 0
    failed: int = 0
    """Requests that failed against the promise."""
    excused: int = 0
    """Requests that failed as the scenario says that they may."""
    seconds: float = 0.0
    """From the first action to the end of the last request."""
    note: str = ""
    error: str = ""
    """Why the scenario didn't come to its end."""

    @property
    def passed(self) -> bool:
        return not self.failed and not self.error


def write(page: Path, part: str, text: str, *, keep: bool = False) -> None:
    """Replace the table of a part in a page; `keep` the rows of scenarios that the new one lacks, where they are.
    Raises ValueError if the page has no place for it."""
    begin, end = f"<!-- {part} -->\n", "<!-- end -->"
    before, found, after = page.read_text(encoding="utf-8").partition(begin)
    if not found:
        raise ValueError(f"{page} has no {begin.strip()}")
    old, rest = after[: after.index(end)], after[after.index(end) :]
    if keep:
        lines = f"{old}{text}".splitlines()
        rows = {row.split("|")[1]: row for row in lines if row.startswith("|")}
        text = "\n".join(rows.values())
    page.write_text(f"{before}{begin}{text}\n{rest}", encoding="utf-8")


def render(results: Iterable[Result]) -> str:
    """A Markdown table, with a line for each failure below it."""
    results = list(results)
    rows = [
        (
            one.scenario,
            str(one.requests) if one.requests else "–",
            str(one.failed + one.excused) if one.requests else "–",
            f"{one.seconds:.0f} s" if one.seconds else "–",
            one.note or "–",
        )
        for one in results
    ]
    text = table(("scenario", "requests", "failed", "took", "note"), rows)
    broken = [f"FAILED {one.scenario}: {one.error or f'{one.failed} requests'}" for one in results if not one.passed]
    return "\n".join([text.rstrip("\n"), *broken])
