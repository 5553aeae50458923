"""Text tables for terminals."""

from collections.abc import Iterable, Sequence

from shared.printable import printable

DASH = "–"


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]], indent: str = "", numbers: int = 0) -> list[str]:
    """Aligned columns, without trailing blanks; the last `numbers` to the right. An empty cell is a dash."""
    lines = [list(header), *([printable(cell) or DASH for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    aligned = [*["<"] * (len(header) - numbers), *[">"] * numbers]
    form = "  ".join(f"{{:{side}{width}}}" for side, width in zip(aligned, widths, strict=True))
    return [indent + form.format(*line).rstrip() for line in lines]
