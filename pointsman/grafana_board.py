"""deploy/grafana/boards: the Grafana dashboards of the panels in deploy/grafana/boards.yaml."""

import json
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct


class Panel(Struct, frozen=True):
    """A time series panel. Two or three in a row, in the order of the list."""

    title: str
    unit: str
    """Grafana's name of the unit: `reqps`, `s`, `percentunit`, `short`."""
    queries: dict[str, str]
    """PromQL by its legend."""


class Board(Struct, frozen=True):
    """A dashboard: its panels by the titles of its sections."""

    title: str
    rows: dict[str, tuple[Panel, ...]]


_FILE = Path(__file__).parent.parent / "deploy/grafana/boards.yaml"
BOARDS = msgspec.yaml.decode(_FILE.read_bytes(), type=dict[str, Board])
"""By the names of the files."""

_COLUMNS = 3
_WIDTH, _HEIGHT = 24 // _COLUMNS, 8


def grafana_board(name: str) -> str:
    """The JSON of one of the `BOARDS`."""
    chosen = BOARDS[name]
    board = {
        "uid": f"pointsman-{name}",
        "title": chosen.title,
        "tags": ["pointsman"],
        "schemaVersion": 41,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "links": [{"type": "dashboards", "title": "Pointsman", "tags": ["pointsman"], "keepTime": True}],
        "panels": list(_panels(chosen.rows)),
    }
    return json.dumps(board, indent=1, ensure_ascii=False) + "\n"


def _panels(rows: dict[str, tuple[Panel, ...]]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in rows.items():
        panels.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}})
        for number, panel in enumerate(row):
            down, across = divmod(number, _COLUMNS)
            place = {"x": across * _WIDTH, "y": top + 1 + down * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_panel(panel, place))
        top += 1 + -(-len(row) // _COLUMNS) * _HEIGHT
    return [{"id": number, **panel} for number, panel in enumerate(panels, 1)]


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "gridPos": place,
        "datasource": {"type": "prometheus", "uid": "prometheus"},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend}
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
    }
