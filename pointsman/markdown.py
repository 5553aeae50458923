"""Markdown for the pages of docs/ that are made from the code."""

from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; an empty cell is a dash."""
    cells = [headings, *([cell.replace("|", "&#124;") or "–" for cell in row] for row in rows)]
    head, *body = (f"| {' | '.join(row)} |\n" for row in cells)
    return "".join([head, f"|{'---|' * len(headings)}\n", *body])


def code(text: str) -> str:
    """The text as code; an empty one stays empty."""
    return f"`{text}`" if text else ""
