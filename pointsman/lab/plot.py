"""Draws panels as SVG, without a library: lines over time, and bars."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TypeAlias

from msgspec import Struct

WIDTH, HEIGHT, MARGIN = 320, 170, 36
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
MAX_NAMED = 3
"""Lines with a colour and a legend of their own; those before them are grey."""


class Panel(Struct, frozen=True):
    """Lines by name, with one value a second."""

    title: str
    lines: Mapping[str, Sequence[float]]
    top: float | None = None
    """The end of the axis; None for the greatest value."""
    named: int = MAX_NAMED


class Bars(Struct, frozen=True):
    """Groups of bars: a value for each bar of each group, by the names of both."""

    title: str
    groups: Mapping[str, Mapping[str, float]]
    top: float | None = None


Chart: TypeAlias = Panel | Bars


def draw(columns: Sequence[Sequence[Chart]]) -> str:
    """The SVG document: columns of charts. Those of one row have the same axis."""
    rows = max(map(len, columns))
    width, height = WIDTH * len(columns), HEIGHT * rows
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
        f' font-size="10"><rect width="{width}" height="{height}" fill="white"/>'
    ]
    tops = [max(_top(column[row]) for column in columns if row < len(column)) for row in range(rows)]
    for across, column in enumerate(columns):
        for down, chart in enumerate(column):
            drawn = _panel(chart, tops[down]) if isinstance(chart, Panel) else _bars(chart, tops[down])
            parts.append(f'<g transform="translate({across * WIDTH},{down * HEIGHT})">{drawn}</g>')
    return "\n".join([*parts, "</svg>\n"])


def _top(chart: Chart) -> float:
    each = chart.lines.values() if isinstance(chart, Panel) else [group.values() for group in chart.groups.values()]
    return chart.top or max((value for values in each for value in values), default=1.0) or 1.0


def _axes(title: str, top: float, right: int, bottom: int) -> list[str]:
    return [
        f'<text x="{MARGIN}" y="14" font-weight="bold">{escape(title)}</text>',
        f'<path d="M{MARGIN},22 V{bottom} H{right}" fill="none" stroke="black"/>',
        f'<text x="{MARGIN - 4}" y="30" text-anchor="end">{top:.3g}</text>',
        f'<text x="{MARGIN - 4}" y="{bottom}" text-anchor="end">0</text>',
    ]


def _panel(panel: Panel, top: float) -> str:
    right, bottom = WIDTH - 12, HEIGHT - 24
    length = max(len(line) for line in panel.lines.values())
    parts = _axes(panel.title, top, right, bottom)
    parts.append(f'<text x="{right}" y="{bottom + 14}" text-anchor="end">{length} s</text>')
    unnamed = max(len(panel.lines) - panel.named, 0)
    for number, (name, line) in enumerate(panel.lines.items()):
        color = COLORS[(number - unnamed) % len(COLORS)] if number >= unnamed else "#bbbbbb"
        points = " ".join(
            f"{MARGIN + at * (right - MARGIN) / max(length - 1, 1):.1f},{_height(value, top, bottom):.1f}"
            for at, value in enumerate(line)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}"/>')
        if number >= unnamed:
            y = 34 + 12 * (number - unnamed)
            parts.append(f'<text x="{MARGIN + 6}" y="{y}" fill="{color}">{escape(name)}</text>')
    return "".join(parts)


def _bars(bars: Bars, top: float) -> str:
    right, bottom = WIDTH - 12, HEIGHT - 24
    parts = _axes(bars.title, top, right, bottom)
    wide = (right - MARGIN) / max(len(bars.groups), 1)
    names = list(dict.fromkeys(name for group in bars.groups.values() for name in group))
    narrow = 0.85 * wide / max(len(names), 1)
    for across, (group, values) in enumerate(bars.groups.items()):
        left = MARGIN + wide * (across + 0.075)
        for name, value in values.items():
            at, y = names.index(name), _height(value, top, bottom)
            parts.append(
                f'<rect x="{left + at * narrow:.1f}" y="{y:.1f}" width="{0.9 * narrow:.1f}" height="{bottom - y:.1f}"'
                f' fill="{COLORS[at % len(COLORS)]}"><title>{escape(f"{group}, {name}: {value:.4g}")}</title></rect>'
            )
        parts.append(f'<text x="{left:.1f}" y="{bottom + 12}" font-size="8">{escape(group)}</text>')
    return "".join(parts)


def _height(value: float, top: float, bottom: int) -> float:
    return bottom - min(value / top, 1.0) * (bottom - 22)
