"""Draws lines over time as SVG: a column of panels for each case."""

from collections.abc import Mapping, Sequence
from html import escape

from msgspec import Struct

WIDTH, HEIGHT, MARGIN = 320, 170, 36
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e")
MOST_NAMED = 3
"""Lines with a colour and a legend of their own; those before them are grey."""


class Panel(Struct, frozen=True):
    """Lines by name, with one value a second."""

    title: str
    lines: Mapping[str, Sequence[float]]
    top: float | None = None
    """The end of the axis; None for the greatest value."""


def draw(columns: Sequence[Sequence[Panel]]) -> str:
    """The SVG document."""
    rows = max(map(len, columns))
    width, height = WIDTH * len(columns), HEIGHT * rows
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
        f' font-size="10"><rect width="{width}" height="{height}" fill="white"/>'
    ]
    tops = [max(_top(column[row]) for column in columns if row < len(column)) for row in range(rows)]
    for across, column in enumerate(columns):
        for down, panel in enumerate(column):
            parts.append(f'<g transform="translate({across * WIDTH},{down * HEIGHT})">{_panel(panel, tops[down])}</g>')
    return "\n".join([*parts, "</svg>\n"])


def _top(panel: Panel) -> float:
    """Panels of one row have the same axis."""
    return panel.top or max((value for line in panel.lines.values() for value in line), default=1.0) or 1.0


def _panel(panel: Panel, top: float) -> str:
    right, bottom = WIDTH - 12, HEIGHT - 24
    length = max(len(line) for line in panel.lines.values())
    parts = [
        f'<text x="{MARGIN}" y="14" font-weight="bold">{escape(panel.title)}</text>',
        f'<path d="M{MARGIN},22 V{bottom} H{right}" fill="none" stroke="black"/>',
        f'<text x="{MARGIN - 4}" y="30" text-anchor="end">{top:.3g}</text>',
        f'<text x="{MARGIN - 4}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{right}" y="{bottom + 14}" text-anchor="end">{length} s</text>',
    ]
    unnamed = max(len(panel.lines) - MOST_NAMED, 0)
    for number, (name, line) in enumerate(panel.lines.items()):
        color = COLORS[(number - unnamed) % len(COLORS)] if number >= unnamed else "#bbbbbb"
        points = " ".join(
            f"{MARGIN + at * (right - MARGIN) / max(length - 1, 1):.1f},"
            f"{bottom - min(value / top, 1.0) * (bottom - 22):.1f}"
            for at, value in enumerate(line)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}"/>')
        if number >= unnamed:
            y = 34 + 12 * (number - unnamed)
            parts.append(f'<text x="{MARGIN + 6}" y="{y}" fill="{color}">{escape(name)}</text>')
    return "".join(parts)
