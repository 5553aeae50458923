"""docs/chart-values.md: the values of the Helm chart, from its `values.yaml` and the comments in it.

The page shows the comment above each key. Every key needs one, except a mapping whose keys have comments.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from pointsman.markdown import code, table

VALUES = Path(__file__).parent.parent / "deploy/kubernetes/chart/values.yaml"

_HEAD = """# Values of the Helm chart

These are the values of the chart in `deploy/kubernetes/chart`. [Kubernetes](kubernetes.md#install-with-helm) describes
its use. An unknown value is an error, and so is a value of the wrong type. `make docs` generates this page from
`values.yaml`.

"""
_COMMENT = re.compile(r"( *)# ?(.*)")
_KEY = re.compile(r"( *)([A-Za-z]\w*):")


class Value(Struct, frozen=True):
    """A value: its path (`picker.autoscaling.cpu`), its default and its comment."""

    path: str
    default: Any
    text: str


def values(document: str) -> Iterator[Value]:
    """The values of a `values.yaml` in order. Raises ValueError for a key without the comment that it needs."""
    yield from _below(yaml.safe_load(document), "", _commented(document.splitlines()))


def _below(mapping: dict[str, Any], prefix: str, comments: dict[str, str]) -> Iterator[Value]:
    for key, default in mapping.items():
        path = f"{prefix}{key}"
        if text := comments.get(path):
            yield Value(path, default, text)
        elif isinstance(default, dict) and default:
            yield from _below(default, f"{path}.", comments)
        else:
            raise ValueError(f"{path}: the comment above it is missing")


def _commented(lines: list[str]) -> dict[str, str]:
    """The comment directly above each key, by the key's path."""
    found: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    comment: list[str] = []
    literal: int | None = None
    """The indentation of a key with a multi-line text, whose lines are skipped."""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if literal is not None:
            if not line.strip() or indent > literal:
                continue
            literal = None
        if match := _COMMENT.fullmatch(line):
            comment.append(match[2].strip())
        elif match := _KEY.match(line):
            stack = [level for level in stack if level[0] < indent] + [(indent, match[2])]
            if comment:
                found[".".join(name for _, name in stack)] = " ".join(comment)
            comment = []
            literal = indent if line.rstrip().endswith(": |") else None
        else:
            comment = []
    return found


def chart_page() -> str:
    """The text of the page."""
    rows = [(code(value.path), _default(value.default), value.text) for value in values(VALUES.read_text("utf-8"))]
    return _HEAD + table(("value", "default", "meaning"), rows)


def _default(default: Any) -> str:
    """A default value as a cell; a text of several lines is a link."""
    if isinstance(default, str) and "\n" in default:
        return "[values.yaml](../deploy/kubernetes/chart/values.yaml)"
    return code(default if isinstance(default, str) else json.dumps(default, ensure_ascii=False))
