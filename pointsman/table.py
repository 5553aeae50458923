"""Text tables for terminals."""

from collections.abc import Iterable, Sequence

from shared.printable import printable

DASH = "–"


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Aligned columns, without trailing blanks. An empty cell is a dash."""
    lines = [list(header), *([printable(cell) or DASH for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
