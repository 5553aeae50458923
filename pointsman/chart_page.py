"""docs/chart-values.md: the values of the Helm chart, from its `values.yaml` and the comments there.

The comment above a key is what the page says of it, so every key needs one, but for a mapping whose keys have theirs.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

VALUES = Path(__file__).parent.parent / "deploy/kubernetes/chart/values.yaml"

_HEAD = """# Values of the Helm chart

These are the values of the chart in `deploy/kubernetes/chart`. [Kubernetes](kubernetes.md#install-with-helm) describes
its use. An unknown value is an error, and so is a value of the wrong type. `make docs` generates this page from
`values.yaml`.

| value | default | meaning |
|---|---|---|
"""
_COMMENT = re.compile(r"( *)# ?(.*)")
_KEY = re.compile(r"( *)([A-Za-z]\w*):")


class Value(Struct, frozen=True):
    """One value: where it is (`picker.autoscaling.cpu`), its default, what its comment says."""

    path: str
    default: Any
    text: str


def values(document: str) -> Iterator[Value]:
    """The values of a `values.yaml`, in its order.

    Raises ValueError, naming the key, for one without a comment that isn't a mapping of keys with comments.
    """
    yield from _below(yaml.safe_load(document), "", _commented(document.splitlines()))


def _below(mapping: dict[str, Any], prefix: str, comments: dict[str, str]) -> Iterator[Value]:
    for key, default in mapping.items():
        path = f"{prefix}{key}"
        if text := comments.get(path):
            yield Value(path, default, text)
        elif isinstance(default, dict) and default:
            yield from _below(default, f"{path}.", comments)
        else:
            raise ValueError(f"{path}: a comment above it is missing, which the page would show")


def _commented(lines: list[str]) -> dict[str, str]:
    """What the comment directly above a key says, by the key's path."""
    found: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    comment: list[str] = []
    literal: int | None = None
    """The indentation of the key whose text goes on below it."""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if literal is not None:
            if not line.strip() or indent > literal:
                continue
            literal = None
        if match := _COMMENT.fullmatch(line):
            comment.append(match[2].strip())
        elif match := _KEY.match(line):
            stack = [one for one in stack if one[0] < indent] + [(indent, match[2])]
            if comment:
                found[".".join(name for _, name in stack)] = " ".join(comment)
            comment = []
            literal = indent if line.rstrip().endswith(": |") else None
        else:
            comment = []
    return found


def chart_page() -> str:
    """The page's text."""
    return _HEAD + "".join(
        f"| `{one.path}` | {_shown(one.default)} | {one.text.replace('|', '&#124;')} |\n"
        for one in values(VALUES.read_text(encoding="utf-8"))
    )


def _shown(default: Any) -> str:
    """A default as a cell of the table; a text of several lines is a link to it."""
    if isinstance(default, str) and "\n" in default:
        return "[values.yaml](../deploy/kubernetes/chart/values.yaml)"
    if default == "":
        return "–"
    text = default if isinstance(default, str) else json.dumps(default, ensure_ascii=False)
    return f"`{text.replace('|', '&#124;')}`"
